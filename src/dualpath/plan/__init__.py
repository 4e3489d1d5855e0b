"""Will it help me? What a model, a context and a cluster need, what each way of serving costs, and a verdict."""
