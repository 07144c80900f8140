"""Sources and sinks. Of Penstock, a connector depends only on the contracts in `penstock.api`."""
