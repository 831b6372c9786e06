"""In: kernels of the runtime and the codec. Out: their times, beside a plain read of as many bytes."""
