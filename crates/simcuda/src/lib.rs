//! A CUDA driver library over simulated GPUs.
