"""Where control groups are made, on machines laid out in a temporary folder."""

from pathlib import Path

from practicum.environment.sandbox.zygote.cgroup_places import Mount, place_v2, places_v1


def v2_tree(root: Path, offers: dict[str, str]) -> list[Mount]:
    for path, controllers in offers.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "cgroup.subtree_control").write_text(controllers + "\n")
    return [Mount("/", str(root), "cgroup2", ["rw"])]


def test_v2_takes_the_nearest_group_that_hands_out_memory_and_pids(tmp_path: Path) -> None:
    mounts = v2_tree(
        tmp_path,
        {
            "": "cpu memory pids",
            "user.slice": "memory pids",
            "user.slice/session.scope": "",
        },
    )
    place = place_v2({"": "/user.slice/session.scope"}, mounts)
    assert place is not None
    assert place.path == str(tmp_path / "user.slice")
    assert place.controllers == ("memory", "pids")


def test_v2_without_the_controllers_is_no_place(tmp_path: Path) -> None:
    mounts = v2_tree(tmp_path, {"": "hugetlb", "a": "cpu"})
    assert place_v2({"": "/a"}, mounts) is None
    assert place_v2({}, mounts) is None
    assert place_v2({"": "/a"}, []) is None


def test_v2_in_a_container_that_sees_only_its_own_part(tmp_path: Path) -> None:
    v2_tree(tmp_path, {"": "memory pids cpu", "inner": ""})
    mounts = [Mount("/docker/abc", str(tmp_path), "cgroup2", [])]
    place = place_v2({"": "/docker/abc/inner"}, mounts)
    assert place is not None
    assert place.path == str(tmp_path)


def test_v1_finds_our_group_in_every_hierarchy() -> None:
    mounts = [
        Mount("/", "/sys/fs/cgroup/memory", "cgroup", ["rw", "memory"]),
        Mount("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", ["rw", "cpu", "cpuacct"]),
        Mount("/docker/x", "/sys/fs/cgroup/pids", "cgroup", ["rw", "pids"]),
    ]
    groups = {"memory": "/job/1", "cpu": "/", "pids": "/docker/x"}
    assert places_v1(groups, mounts) == [
        (("memory",), "/sys/fs/cgroup/memory/job/1"),
        (("cpu",), "/sys/fs/cgroup/cpu,cpuacct"),
        (("pids",), "/sys/fs/cgroup/pids"),
    ]


def test_v1_groups_outside_of_what_is_mounted_fall_back_to_the_mount() -> None:
    mounts = [Mount("/docker/x", "/sys/fs/cgroup/memory", "cgroup", ["memory"])]
    assert places_v1({"memory": "/elsewhere"}, mounts) == [(("memory",), "/sys/fs/cgroup/memory")]


def test_controllers_that_share_a_hierarchy_share_a_place() -> None:
    mounts = [Mount("/", "/cg/both", "cgroup", ["cpu", "pids"])]
    assert places_v1({"cpu": "/a", "pids": "/a"}, mounts) == [(("pids", "cpu"), "/cg/both/a")]
