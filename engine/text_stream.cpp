// Ids to whole characters.
