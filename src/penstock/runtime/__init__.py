"""The shared driver of a slot and of the job master: feeds events to the machines, performs their effects."""
