"""Jobs: taken, made step by step, stored with what they tell."""
