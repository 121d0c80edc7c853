"""What engines of queries and jobs share: what they hold, who lives, what is due."""
