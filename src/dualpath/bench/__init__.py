"""The experiment behind `dualpath run` with its report, and the benches of kernel and transports."""
