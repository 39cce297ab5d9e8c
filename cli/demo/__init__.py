"""`awa demo`: a crew of real workers, sample jobs on a stage, scenes read from the database, and a view of them."""
