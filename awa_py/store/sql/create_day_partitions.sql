-- Create the partitions of today and the days ahead. Return the number of partitions created.
-- $1 the table: completed or events · $2 the number of days after today
SELECT awa.create_day_partitions($1, $2)
