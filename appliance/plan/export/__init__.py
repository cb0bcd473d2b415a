"""Plans in the words of other tools: one module a tool, and what each of them cannot say."""
