//! Captures by others, through cudarc, and what their graphs have.
#![allow(dead_code)]

use std::sync::Arc;

use scaled_gemm::cudarc::driver::sys::{self, CUstreamCaptureMode};
use scaled_gemm::cudarc::driver::{CudaGraph, CudaStream};
use scaled_gemm::{Error, Handle};

pub fn end(stream: &Arc<CudaStream>) -> CudaGraph {
    let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
    ended.unwrap_or_else(|e| panic!("the capture is broken: {e}")).expect("a graph")
}

/// Captures as a program does that knows cudarc alone.
pub fn foreign(handle: &Handle, mode: CUstreamCaptureMode, enqueue: impl FnOnce() -> Result<(), Error>) -> CudaGraph {
    handle.stream().begin_capture(mode).unwrap();
    let enqueued = enqueue();
    // What was refused says more than that the capture is broken.
    if let Err(error) = &enqueued {
        let _ = handle.stream().end_capture(sys::CUgraphInstantiate_flags(0));
        panic!("{mode:?}: {error}");
    }
    end(handle.stream())
}

/// How much was captured. What was allocated, copied or freed inside is a node, too.
pub fn nodes(graph: &CudaGraph) -> usize {
    let mut count = 0;
    // SAFETY: the graph is alive; without a list to write to, the driver writes their number alone.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut count) }.result().unwrap();
    count
}
