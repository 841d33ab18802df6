"""The command line of the binding: doctor, trace, insts, xclbin and their kind."""
