"""The cold tier of a broker. Nobody imports it whose broker has no tieredStoreFilePath."""
