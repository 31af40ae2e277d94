"""What the commands print, with everything that sites and other jobs put in between; and anything else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openai4s_backend_slurm import parse, states
from openai4s_backend_slurm.parse import JobName
from openai4s_backend_slurm.states import Exit

ROW = "4242|PENDING|o4s-abc|2|1795990000|N/A||gpu|17|ReqNodeNotAvail, UnavailableNodes:c1|c2"


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("4242\n", JobName(4242)),
        ("4242;west\n", JobName(4242, "west")),
        ("15786755", JobName(15786755)),
        ("Submitted batch job 4242\n", JobName(4242)),
        ("Submitted batch job 3969755 on cluster nautilus\n", JobName(3969755, "nautilus")),
        ("*** Welcome! 12 jobs are running ***\n\nProject: 17\n4242\n", JobName(4242)),
        ("sbatch: info: estimated cost 300\nSubmitted batch job 4242\n", JobName(4242)),
        ("2026\nSubmitted batch job 4242\n", JobName(4242)),
        ("4242\n4242\n", JobName(4242)),
        ("  4242  \r\n", JobName(4242)),
        ("", None),
        ("12\n4242\n", None),
        ("Submitted batch job\n", None),
        ("ok\n", None),
        ("-4242\n", None),
        ("4242;we st\n", None),
        ("99999999999999\n", None),
    ],
)
def test_the_number_of_a_job_among_what_a_wrapper_prints(output: str, name: JobName | None) -> None:
    assert parse.submitted(output) == name


def test_a_row_of_the_queue() -> None:
    (row,) = parse.queue_rows(f"CLUSTER: west\n\n{ROW}\n")
    assert (row.number, row.state, row.name, row.partition, row.priority) == (4242, "PENDING", "o4s-abc", "gpu", 17)
    assert (row.asks_nodes, row.starts_at, row.ends_at) == (2, 1795990000.0, None)
    assert row.reason == "ReqNodeNotAvail, UnavailableNodes:c1|c2"


@pytest.mark.parametrize("name", ["my job", "a|b", "x\ny", "é" * 300, "", "%j", "|||||||||||"])
def test_an_odd_job_of_somebody_does_not_hide_ours(name: str) -> None:
    odd = ROW.replace("4242", "7").replace("o4s-abc", name)
    rows = parse.queue_rows(f"{odd}\n{ROW}\n{odd}\n")
    assert [row for row in rows if row.number == 4242 and row.name == "o4s-abc"]


@pytest.mark.parametrize(
    ("details", "most"),
    [
        ("PartitionName=cpu MaxNodes=UNLIMITED MaxTime=1-00:00:00 TotalCPUs=16 TotalNodes=2 State=UP", 2),
        ("PartitionName=cpu MaxNodes=1 MinNodes=0 TotalNodes=2", 1),
        ("PartitionName=cpu", None),
        ("", None),
    ],
)
def test_how_many_machines_a_job_may_have(details: str, most: int | None) -> None:
    assert parse.nodes_granted(details) == most


def test_rows_of_accounting() -> None:
    rows = parse.accounting_rows(
        "13|PREEMPTED|0:0|1795986882|1795986890|g1|o4s-abc\n"
        "13.batch|CANCELLED|0:15|1|2|g1|batch\n"
        "9|CANCELLED by 1001|0:0|Unknown|1795986890|None assigned|o4s-a|b\n"
        "8|FAILED|3:0|1|2|c[1-2]|o4s-c\n"
    )
    assert [(row.number, row.state, row.exit, row.nodes, row.name) for row in rows] == [
        (13, "PREEMPTED", Exit(0, 0), "g1", "o4s-abc"),
        (9, "CANCELLED by 1001", Exit(0, 0), "", "o4s-a|b"),
        (8, "FAILED", Exit(3, 0), "c[1-2]", "o4s-c"),
    ]


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("", ()),
        ("g1", ("g1",)),
        ("g1,c2", ("g1", "c2")),
        ("a[1-2],b[3-4]", ("a1", "a2", "b3", "b4")),
        ("n[08-10,12]x", ("n08x", "n09x", "n10x", "n12x")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a[", ("a[",)),
        ("a[2-1]", ()),
        ("a[x]", ("a[x]",)),
    ],
)
def test_the_machines_of_a_job(nodes: str, hosts: tuple[str, ...]) -> None:
    assert parse.hosts(nodes) == hosts


def test_a_list_of_machines_is_bounded() -> None:
    assert len(parse.hosts("n[1-9999999],m[1-9999999]")) <= 5000
    assert len(parse.hosts("n[0-999][0-999][0-999]")) <= 5000


def test_the_exit_in_a_job_s_details_is_that_job_s() -> None:
    details = "JobId=7 JobName=x JobState=FAILED Restarts=0 ExitCode=3:0 RunTime=00:00:20"
    assert parse.exit_in_details(details, 7) == Exit(3, 0)
    assert parse.exit_in_details(details, 70) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("3 4242\n", (Exit(3, 0), 4242)), ("0 \n", (Exit(0, 0), None)), ("", None), ("x 1", None), ("-1 1", None)],
)
def test_what_the_script_wrote_of_its_end(text: str, found: tuple[Exit, int | None] | None) -> None:
    assert parse.recorded_exit(text) == found


noise = st.one_of(
    st.text(),
    st.binary().map(lambda data: data.decode("utf-8", "replace")),
    st.lists(st.sampled_from(["4242", "|", "RUNNING", "COMPLETED", "\n", ";", "[", "]", "-", ",", "0:0", "N/A"])).map(
        "".join
    ),
)


@given(noise)
@example("|" * 40)
def test_no_output_makes_a_parser_raise(text: str) -> None:
    parse.submitted(text)
    parse.queue_rows(text)
    parse.accounting_rows(text)
    parse.hosts(text)
    parse.exit_of(text)
    parse.recorded_exit(text)
    parse.exit_in_details(text, 4242)


@given(noise, st.integers(0, len(ROW)))
def test_a_row_that_was_cut_or_garbled_ends_no_job(text: str, cut: int) -> None:
    """What is left of a living job's row is that job alive, or no row at all, or a state that nobody knows."""
    for garbled in (ROW[:cut], ROW[cut:], ROW[:cut] + text.replace("COMPLETED", "").replace("\n", " ")):
        for row in parse.queue_rows(garbled):
            if row.number == 4242 and row.name == "o4s-abc":
                assert states.end_state(row.state) is None
