"""Tables whose changelogs lost rows, made whole again from the events."""
