"""Shardings propagate through fusions, and the fusions of the ranks give the results of one device."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import fusions
from tests.session.samples import times
from tracefuse.compiler.executable import compile_fusion
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate, extent_values
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.partition.over_ranks.local_fusion import LocalFusion, localize
from tracefuse.partition.over_ranks.propagation import Spec
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.loopback import run_ranks
from tracefuse.runtime.communicators.rank_groups import RankGroup

MESHES = (DeviceMesh([0, 1], ("a",)), DeviceMesh([[0, 1], [2, 3]], ("a", "b")), DeviceMesh([0, 1, 2], ("a",)))


def specs(data: st.DataObject, mesh: DeviceMesh, shape: tuple[int, ...]) -> Spec:
    """Draws a sharding, whose parts may differ."""
    free, entries = list(mesh.names), []
    for extent in shape:
        name = data.draw(st.sampled_from([None, *free])) if extent != 1 else None
        if name is not None:
            free.remove(name)
        entries.append(() if name is None else (name,))
    return tuple(entries)


def run_local(
    local: LocalFusion, mesh: DeviceMesh, arguments: list[Any], fusion: Fusion, given: dict[int, Spec]
) -> Any:
    """Runs the fusion of this rank on its parts of the arguments."""
    rank = current_world().rank
    parts = []
    for number, argument in zip(fusion.inputs, arguments, strict=True):
        if number in given:
            parts.append(np.ascontiguousarray(argument[Sharding(mesh, given[number]).slices(rank, argument.shape)]))
        else:
            parts.append(argument)
    arrays = dict(zip(fusion.inputs, arguments, strict=True))
    wholes = [arrays[number].shape[axis] for number, axis in local.wholes]
    return compile_fusion(local.fusion)([*parts, *mesh.coordinates(rank), *wholes])


@settings(max_examples=times(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_fusions_over_ranks_give_the_results_of_one_device(data: st.DataObject) -> None:
    fusion, arguments = data.draw(fusions("exact"))
    assume(not fusion.aliases)
    mesh = data.draw(st.sampled_from(MESHES))
    tensors = dict(zip(fusion.inputs, arguments, strict=True))
    given = {number: specs(data, mesh, tensors[number].shape) for number in fusion.tensor_inputs}
    expected = evaluate(fusion, arguments)
    wanted = [specs(data, mesh, np.shape(one)) if data.draw(st.booleans()) else None for one in expected]
    sizes = dict(extent_values(fusion, arguments))
    sizes.update({number: tensors[number] for number in fusion.scalar_inputs})
    local = localize(fusion, mesh, sizes, given, wanted, RankGroup)
    results = run_ranks(len(mesh.ranks), run_local, local, mesh, arguments, fusion, given)
    for rank, outputs in enumerate(results):
        for part, whole, spec in zip(outputs, expected, local.outputs, strict=True):
            np.testing.assert_array_equal(part, np.asarray(whole)[Sharding(mesh, spec).slices(rank, np.shape(whole))])
