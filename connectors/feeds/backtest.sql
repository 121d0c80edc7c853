-- Insights as a backtest takes them: when, and in which channel. By the time that their producers tell, or by their arrival.

-- name: backtest_by_event_time
SELECT ts AS at, channel_id FROM insights WHERE ts >= $1 AND ts < $2 ORDER BY ts, insight_id

-- name: backtest_by_arrival
SELECT arrived_at AS at, channel_id FROM insights WHERE arrived_at >= $1 AND arrived_at < $2 ORDER BY arrived_at, insight_id

-- name: backtest_span
SELECT min(ts) AS first_ts, max(ts) AS last_ts, min(arrived_at) AS first_arrived_at, max(arrived_at) AS last_arrived_at
FROM insights
