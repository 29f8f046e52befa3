"""Watermarks of inputs are found again by their producers, not by their places."""

from penstock.core.ids import Epoch, Generation, JobId, OperatorId
from penstock.core.watermark import MAX_MICROS, InputWatermark
from penstock.graph.logical import Edge, LogicalGraph, Node, OperatorSpec
from penstock.runtime.plan.epoch_plan import known_inputs, label_inputs
from penstock.state.protocol import codec
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef, OperatorEntry

A, B, C, UNION = (OperatorId(name) for name in ("a", "b", "c", "union"))


def a_graph(*producers: OperatorId) -> LogicalGraph:
    nodes = [Node(name, OperatorSpec("any")) for name in (*producers, UNION)]
    edges = [Edge(name, UNION, input_index=index) for index, name in enumerate(producers)]
    return LogicalGraph(JobId("job"), tuple(nodes), tuple(edges))


def a_manifest(*inputs: InputWatermark) -> CheckpointManifest:
    ref = CheckpointRef(JobId("job"), Generation(1), Epoch(1))
    return CheckpointManifest(
        ref, None, 0, 0, needs_commit=False, operators=(OperatorEntry(UNION, (), inputs),)
    )


def stored(graph: LogicalGraph, *inputs: InputWatermark) -> CheckpointManifest:
    manifest = a_manifest(*label_inputs(graph, UNION, inputs))
    return codec.decode(CheckpointManifest, codec.encode(manifest), "manifest.pb")


ENDED, AT_5 = InputWatermark(MAX_MICROS), InputWatermark(5)


def test_inputs_that_changed_places_keep_their_watermarks() -> None:
    manifest = stored(a_graph(A, B), ENDED, AT_5)
    assert known_inputs(a_graph(B, A), manifest)[UNION] == (AT_5, ENDED)


def test_a_new_input_starts_where_the_operator_stands() -> None:
    manifest = stored(a_graph(A, B), InputWatermark(9), AT_5)
    assert known_inputs(a_graph(A, C), manifest)[UNION] == (InputWatermark(9), AT_5)


def test_idleness_is_kept_with_the_producer() -> None:
    manifest = stored(a_graph(A, B), InputWatermark(9, idle=True), AT_5)
    assert known_inputs(a_graph(B, A), manifest)[UNION] == (
        AT_5,
        InputWatermark(9, idle=True),
    )


def test_without_a_checkpoint_nothing_is_known() -> None:
    assert known_inputs(a_graph(A, B), None)[UNION] == (InputWatermark(), InputWatermark())


def test_checkpoints_without_producers_are_read_by_place() -> None:
    assert known_inputs(a_graph(A, B), a_manifest(ENDED, AT_5))[UNION] == (ENDED, AT_5)
