"""The mistakes by area. Each is one that a plausible edit could make."""

from tests.mutants.catalog import claim, cleanup, cron, cursor, durable, election, faults, guard, rescue, unique

AREAS = {
    "guard": guard.MUTANTS,
    "claim": claim.MUTANTS,
    "cursor": cursor.MUTANTS,
    "election": election.MUTANTS,
    "rescue": rescue.MUTANTS,
    "cleanup": cleanup.MUTANTS,
    "cron": cron.MUTANTS,
    "unique": unique.MUTANTS,
    "faults": faults.MUTANTS,
    "durable": durable.MUTANTS,
}
MUTANTS = tuple(mutant for mutants in AREAS.values() for mutant in mutants)
