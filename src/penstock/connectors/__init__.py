"""Sources and sinks. Each depends on the contracts in `penstock.api` and on nothing else of ours."""
