"""What durable jobs are meant to reach beside the others. Ratios are medians over the rounds."""

from tests.bench.peers.results import Results
from tests.bench.peers.targets import AT_LEAST, AT_MOST, Target


def targets(results: Results) -> list[Target]:
    def against(description: str, workload: str, figure: str, other: str, relation: str, wanted: float) -> Target:
        ratio = results.ratio((workload, "awa", figure), [(workload, other, figure)], max)
        return Target(description=description, relation=relation, wanted=wanted, measured=ratio)

    context = results.ratio(("context", "awa:Context", "jobs_per_s"), [("context", "awa:plain", "jobs_per_s")], max)
    return [
        against("Steps/s, against DBOS", "steps", "steps_per_s", "dbos", AT_LEAST, 30),
        against("Steps/s, against Absurd", "steps", "steps_per_s", "absurd", AT_LEAST, 10),
        against("Time per step of a job alone, against DBOS", "alone", "ms_per_step", "dbos", AT_MOST, 0.25),
        against("Time per step of a job alone, against Absurd", "alone", "ms_per_step", "absurd", AT_MOST, 0.6),
        against("Children/s, against DBOS", "children", "children_per_s", "dbos", AT_LEAST, 100),
        Target(
            description="Jobs/s with an unused Context, against none",
            relation=AT_LEAST,
            wanted=0.85,
            measured=context,
        ),
    ]
