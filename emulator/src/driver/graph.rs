//! Graphs, and the functions that capture streams into them.

use std::sync::Arc;

use super::capture::Mode;
use super::codes::*;
use super::op::Op;
use super::state::{Handle, Turn, call, call_in_context};
use super::stream::{LEGACY, resolve};

/// A piece of work of a graph.
pub struct Node {
    /// Names it.
    pub handle: Handle,
    /// The work.
    pub op: Op,
    /// The nodes before it that it follows.
    pub after: Vec<usize>,
}

/// What a capture has recorded; its order heeds all edges.
pub struct Graph {
    /// First to last.
    pub nodes: Vec<Node>,
}

/// `CU_STREAM_CAPTURE_STATUS_NONE`, `_ACTIVE` and `_INVALIDATED`.
const STATUS: [u32; 3] = [0, 1, 2];
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, which the emulator has not.
const DEVICE_LAUNCH: u64 = 4;

/// `cuStreamBeginCapture_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> Code {
    call(|turn| turn.begin_capture(resolve(stream)?, Mode::of(mode)?))
}

/// `cuStreamEndCapture`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    call(|turn| {
        let ended = resolve(stream).and_then(|stream| turn.end_capture(stream));
        let (handle, outcome) = match ended {
            Ok(ended) => {
                let handle = turn.new_handle();
                turn.graphs.insert(handle, Arc::new(ended));
                (handle, Ok(()))
            }
            Err(error) => (0, Err(error)),
        };
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(graph, handle) }.and(outcome)
    })
}

/// The stream of a question about captures: the legacy default one is refused while others are captured that it would wait for.
fn asked(turn: &Turn, stream: Handle) -> Outcome<Handle> {
    let stream = resolve(stream)?;
    if stream == LEGACY && !turn.implicit().is_empty() { Err(CAPTURE_IMPLICIT) } else { Ok(stream) }
}

/// `cuStreamIsCapturing`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut u32) -> Code {
    call(|turn| {
        let stream = asked(turn, stream)?;
        let valid = turn.stream(stream)?.capture.map(|id| turn.captures[&id].valid);
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(status, STATUS[valid.map_or(0, |valid| if valid { 1 } else { 2 })]) }
    })
}

/// Where `cuStreamGetCaptureInfo` writes; any but the first may be null.
struct Info {
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    edges: *mut *const u8,
    count: *mut usize,
}

/// # Safety
/// All places are valid or null.
unsafe fn capture_info(stream: Handle, info: Info) -> Code {
    call(|turn| {
        let stream = asked(turn, stream)?;
        let id = turn.stream(stream)?.capture;
        let (mut status, mut nodes, mut count) = (STATUS[0], std::ptr::null(), 0);
        if let Some(capture) = id.and_then(|id| turn.captures.get_mut(&id)) {
            status = STATUS[if capture.valid { 1 } else { 2 }];
            capture.told = capture.members[&stream].iter().map(|at| capture.nodes[*at].handle).collect();
            (nodes, count) = (capture.told.as_ptr(), capture.told.len());
        }
        // SAFETY: the caller's; null places but that of the status are passed over.
        unsafe {
            put(info.status, status)?;
            let id = id.unwrap_or(0);
            let _ = (put(info.id, id), put(info.graph, id), put(info.nodes, nodes), put(info.count, count));
            let _ = put(info.edges, std::ptr::null());
        }
        Ok(())
    })
}

/// `cuStreamGetCaptureInfo` of CUDA 10.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo(stream: Handle, status: *mut u32, id: *mut u64) -> Code {
    let (graph, nodes) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (edges, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's, as CUDA documents.
    unsafe { capture_info(stream, Info { status, id, graph, nodes, edges, count }) }
}

/// `cuStreamGetCaptureInfo` of CUDA 11.3 and 12.0. The nodes stay where they are until the next question about the capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    count: *mut usize,
) -> Code {
    let edges = std::ptr::null_mut();
    // SAFETY: the caller's, as CUDA documents.
    unsafe { capture_info(stream, Info { status, id, graph, nodes, edges, count }) }
}

/// `cuStreamGetCaptureInfo` of CUDA 12.3 and 13.0; no edge has data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    edges: *mut *const u8,
    count: *mut usize,
) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { capture_info(stream, Info { status, id, graph, nodes, edges, count }) }
}

/// `cuGraphGetNodes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> Code {
    call(|turn| {
        let graph = turn.graphs.get(&graph).ok_or(INVALID_VALUE)?;
        if nodes.is_null() {
            // SAFETY: the caller's, as CUDA documents.
            return unsafe { put(count, graph.nodes.len()) };
        }
        if count.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's, as CUDA documents; it is not null.
        let room = unsafe { count.read() };
        for at in 0..room {
            let handle = graph.nodes.get(at).map_or(0, |node| node.handle);
            // SAFETY: the caller says that there is so much room.
            unsafe { nodes.add(at).write(handle) };
        }
        // SAFETY: as above.
        unsafe { put(count, room.min(graph.nodes.len())) }
    })
}

/// `cuGraphInstantiateWithFlags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> Code {
    call_in_context(|turn| {
        if flags & DEVICE_LAUNCH != 0 {
            return Err(INVALID_VALUE);
        }
        let graph = turn.graphs.get(&graph).ok_or(INVALID_VALUE)?.clone();
        let handle = turn.new_handle();
        turn.execs.insert(handle, graph);
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(exec, handle) }
    })
}

/// `cuGraphLaunch`; into a stream that is captured it is one node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> Code {
    call(|turn| {
        let graph = turn.execs.get(&exec).ok_or(INVALID_VALUE)?.clone();
        turn.submit(resolve(stream)?, Op::Graph(graph))
    })
}

/// `cuGraphUpload`: there is nothing to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> Code {
    call(|turn| {
        turn.execs.get(&exec).ok_or(INVALID_VALUE)?;
        let stream = resolve(stream)?;
        turn.stream(stream)?;
        turn.refuse_captured(stream, CAPTURE_UNSUPPORTED)
    })
}

/// `cuGraphDestroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: Handle) -> Code {
    call(|turn| turn.graphs.remove(&graph).map(drop).ok_or(INVALID_VALUE))
}

/// `cuGraphExecDestroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(exec: Handle) -> Code {
    call(|turn| turn.execs.remove(&exec).map(drop).ok_or(INVALID_VALUE))
}
