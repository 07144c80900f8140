"""A slot between a master and a peer that a test plays."""

from __future__ import annotations

from collections import deque

import cloudpickle
import pyarrow as pa
from held_work import HeldWork

from penstock.api.connector import Pause, Sink, SinkWriter, Source, SourceReader
from penstock.api.program import Program
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, SlotId, SlotIndex
from penstock.core.messages import Credit, Deploy, Heartbeat, PeerAddress, Run
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.links import Links
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.master_link import MASTER, NO_EPOCH
from penstock.runtime.slot.ports import SlotPorts
from penstock.settings import JobSettings, NetworkSettings, SlotSettings
from penstock.wire.codec import BatchCodec, decode_to_master, encode_message
from penstock.wire.frames import Channel, Kind

SCHEMA = pa.schema([pa.field("n", pa.int64())])
SLOT = SlotId(SlotIndex(0), 1)
PEER, NEXT_PEER = (SlotId(SlotIndex(1), incarnation) for incarnation in (1, 2))
WINDOW = 640
SETTINGS = JobSettings(
    parallelism=2,
    network=NetworkSettings(channel_bytes=WINDOW, output_bytes=WINDOW, batch_bytes=WINDOW),
    slot=SlotSettings(heartbeat_interval_ms=100, heartbeat_timeout_ms=2_500),
)
SILENCE_MS = 3_750
"""After which a peer counts as silent: when the master would long have found it hanging."""


def rows(*values):
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


SCRIPT = deque()
"""What the source of the slot under test gives; a plan is pickled on its way, so it cannot carry the script itself."""
WRITTEN = []
OPENED = []


class ScriptReader(SourceReader):
    def poll(self, max_rows, now_ms):
        return SCRIPT.popleft() if SCRIPT else Pause(50)

    def snapshot(self):
        return []


class ScriptSource(Source):
    @property
    def schema(self):
        return SCHEMA

    def splits(self, parallelism):
        return []

    def open(self, splits):
        if OPENED == ["refuse"]:
            raise OSError("the source cannot be reached")
        OPENED.append("source")
        return ScriptReader()


class ListWriter(SinkWriter):
    def write(self, batch):
        WRITTEN.extend(batch.column(0).to_pylist())

    def prepare(self, checkpoint):
        return list


class ListSink(Sink):
    def writer(self, context):
        OPENED.append("writer")
        return ListWriter()

    def commit(self, committables):
        pass


def plan(step=None, *, joined=True):
    """source ═in turn═► step → sink; with `step` instead of a harmless one. Or slices that nothing joins."""
    program = Program(SETTINGS)
    stream = program.read(ScriptSource())
    (stream.rebalance() if joined else stream).where("n > 0").write(ListSink())
    made = program.plan()
    if step is not None:
        object.__setattr__(made.vertices[1].operators[0], "step", step)
    return made


def address_of(slot):
    return PeerAddress(slot=slot, host="here", ipc_address="ipc", tcp_address=None)


def peers(other):
    """The slot under test, and whoever has the second place."""
    return (address_of(SLOT), other)


class Hub:
    """A network in which every message arrives at once."""

    def __init__(self):
        self.inboxes = {}

    def join(self, name):
        self.inboxes[name] = []
        return Wire(self, name)


class Wire:
    def __init__(self, hub, name):
        self._hub = hub
        self._name = name

    def connect(self, peer, address):
        if address == "nowhere":
            raise OSError("no such address")

    def disconnect(self, peer):
        pass

    def gone(self):
        return []

    def dumped(self):
        return []

    def send(self, peer, frames):
        if peer in self._hub.inboxes:
            self._hub.inboxes[peer].append((self._name, [bytes(memoryview(frame)) for frame in frames]))

    def receive(self):
        arrived, self._hub.inboxes[self._name] = self._hub.inboxes[self._name], []
        return arrived


class Clock:
    time = 1_000

    def now(self):
        return Instant(self.time)

    def precise_ms(self):
        return float(self.time)


class Other:
    """A process that the test plays: the master or a peer."""

    def __init__(self, hub, name):
        self.wire = hub.join(name)
        self.packets = []
        self.links = Links(
            self.wire, on_packet=lambda peer, packet: self.packets.append(packet), on_broken=lambda peer, text: None
        )

    def hear(self):
        self.links.receive(Instant(0))
        packets, self.packets = self.packets, []
        return packets


class Stage:
    """The slot under test, its master and its peer."""

    def __init__(self, **ports):
        self.hub = Hub()
        self.clock = Clock()
        self.master = Other(self.hub, MASTER)
        self.peer = Other(self.hub, str(PEER))
        self.driver = SlotDriver(
            SLOT,
            job=JobId("job"),
            settings=SETTINGS,
            ports=SlotPorts(
                **{
                    "clock": self.clock,
                    "transport": self.hub.join(str(SLOT)),
                    "background": HeldWork(),
                    "store": None,
                    **ports,
                }
            ),
            address=SlotAddress(host="here", pid=1, ipc_address="ipc"),
            master_address="ipc",
        )

    def turn(self, times=3):
        for _ in range(times):
            deadline = self.driver.turn(self.clock.now())
            self.driver.validate()
        return deadline

    def order(self, *messages):
        """What the slot answers to what the master says, heartbeats aside."""
        for message in messages:
            self.master.links.send(str(SLOT), Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)
        self.turn()
        return self.answers()

    def answers(self):
        heard = [decode_to_master(p.payload) for p in self.master.hear() if p.header.kind is Kind.CONTROL]
        return [message for message in heard if not isinstance(message, Heartbeat)]

    def deploy(self, epoch=1, **changes):
        values = {
            "epoch": Epoch(epoch),
            "job": JobId("job"),
            "plan": cloudpickle.dumps(plan()),
            "tasks": plan().tasks_of_slot(0),
            "peers": peers(address_of(PEER)),
            "restored_checkpoint": None,
            "restore": {},
            "first_checkpoint": CheckpointId(1),
        }
        return Deploy(**{**values, **changes})

    def run(self, epoch=1):
        self.order(self.deploy(epoch), Run(epoch=Epoch(epoch)))
        self.peer.hear()
        return self

    def let_pass(self, time_ms):
        """What the slot tells the master, which lives, in that time: the first of it."""
        until, told = self.clock.time + time_ms, []
        while not told and not self.driver.left and self.clock.time < until:
            self.clock.time += 250
            self.master.links.keep_alive(self.clock.now())
            told = self.order()
        return told

    def from_peer(self, kind, payload, *, epoch=1, **header):
        """What the slot tells the master after the peer has said this."""
        self.peer.links.send(str(SLOT), kind, payload, epoch=Epoch(epoch), **header)
        self.turn()
        return self.answers()

    def credit(self, granted, *, edge=0, upstream=0, downstream=1, data_taken=False):
        key = {"edge": edge, "upstream": upstream, "downstream": downstream}
        credit = Credit(epoch=Epoch(1), bytes_granted=granted, data_taken=data_taken, **key)
        return self.from_peer(Kind.CREDIT, encode_message(credit))

    def batch(self, *values, channel=(0, 1, 0), **changes):
        payload = BatchCodec(SCHEMA).encode(rows(*values))
        return self.from_peer(Kind.BATCH, payload, channel=Channel(*channel), cost=8 * len(values), **changes)
