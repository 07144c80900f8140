"""What a task was restored with: whether its operators had finished, and the batches that were in flight."""

from __future__ import annotations

from penstock.core.ids import TaskId
from penstock.core.messages import TaskRestore
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.inflight import Batches, ChannelReader
from penstock.runtime.task.outputs import TaskOutputs


class Restored:
    """What one task was restored with. The batches are read off the loop, and put back when the operators are open."""

    def __init__(self) -> None:
        self.has_finished = False
        """Whether the operators finished before the restored checkpoint. If so, the operators do not finish again."""
        self._inputs: Batches = {}
        self._outputs: Batches = {}
        self._dealt: Batches = {}
        """Batches that were in flight at another parallelism, with the rows that this subtask owns."""

    def load(self, task: TaskId, restore: TaskRestore, channels: ChannelReader) -> None:
        """Read the batches that were in flight. Runs off the loop."""
        self._inputs = channels.read(restore.input_channels)
        self._outputs = channels.read(restore.output_channels)
        self._dealt = channels.read_dealt(task, restore.dealt_channels)

    def put_back(self, gate: InputGate, outputs: TaskOutputs) -> bool:
        """Put the batches into the queues. Returns whether upstream must not send before all batches have been read."""
        for key, batches in self._outputs.items():
            outputs.restore(key, batches)
        holds_back = bool(self._dealt)
        if holds_back:
            gate.restore_all_first(self._inputs)
            gate.restore_all_first(self._dealt)
        else:
            for key, batches in self._inputs.items():
                gate.restore(key, batches)
        self._inputs, self._outputs, self._dealt = {}, {}, {}
        return holds_back
