"""Sharding: from axis names on fields to shardings on any mesh, and checks across processes."""

from treewright.sharding.constrain import constrain, constrain_tree, out_sharding, use_rules
from treewright.sharding.init import abstract_state, sharded_init
from treewright.sharding.processes import assert_same_on_all_processes
from treewright.sharding.report import ShardedLeaf, ShardingReport, sharding_report
from treewright.sharding.specs import Rules, partition_specs, shardings

__all__ = [
    "Rules",
    "ShardedLeaf",
    "ShardingReport",
    "abstract_state",
    "assert_same_on_all_processes",
    "constrain",
    "constrain_tree",
    "out_sharding",
    "partition_specs",
    "sharded_init",
    "sharding_report",
    "shardings",
    "use_rules",
]


def __dir__() -> list[str]:
    return sorted(__all__)
