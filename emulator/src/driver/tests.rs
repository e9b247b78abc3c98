//! Captures, queues and refusals, as callers see them; kernels are the interpreter's tests.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::capture::{Mode, THREAD_MODE};
use super::codes::*;
use super::context::*;
use super::copy::*;
use super::event::*;
use super::graph::*;
use super::memory::*;
use super::pointer::*;
use super::pool::*;
use super::state::{CONTEXT, Handle};
use super::stream::*;

/// One test at a time: `cuCtxSynchronize` and captures of mode global concern all threads.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it takes a number alone.
    assert_eq!(unsafe { cuCtxSetCurrent(CONTEXT) }, SUCCESS);
    one
}

/// What a function writes to its first place.
#[track_caller]
fn made<T: Default>(make: impl FnOnce(*mut T) -> Code) -> T {
    let mut value = T::default();
    assert_eq!(make(&mut value), SUCCESS);
    value
}

/// Calls a function of the driver with what it asks for.
macro_rules! cu {
    ($function:ident($($argument:expr),*)) => {
        // SAFETY: handles are numbers, and all places outlive the call; who passes addresses of memory checks them.
        unsafe { $function($($argument),*) }
    };
}

fn new_stream() -> Handle {
    made(|place| cu!(cuStreamCreate(place, 1)))
}

fn new_event() -> Handle {
    made(|place| cu!(cuEventCreate(place, 0)))
}

/// Device memory in which every byte is this.
fn filled(stream: Handle, value: u8) -> u64 {
    let address = made(|place| cu!(cuMemAllocAsync(place, 64, stream)));
    assert_eq!(cu!(cuMemsetD8Async(address, value, 64, stream)), SUCCESS);
    address
}

#[track_caller]
fn read(address: u64, stream: Handle) -> u8 {
    let mut bytes = [0u8; 64];
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, 64, stream)), SUCCESS);
    assert_eq!(cu!(cuStreamSynchronize(stream)), SUCCESS);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
    bytes[0]
}

fn set(address: u64, value: u8, stream: Handle) -> Code {
    cu!(cuMemsetD8Async(address, value, 64, stream))
}

fn begin(stream: Handle) {
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, Mode::ThreadLocal as u32)), SUCCESS);
}

fn end(stream: Handle) -> Result<Handle, Code> {
    let mut graph = 0;
    match cu!(cuStreamEndCapture(stream, &mut graph)) {
        SUCCESS => Ok(graph),
        error => {
            assert_eq!(graph, 0);
            Err(error)
        }
    }
}

fn status(stream: Handle) -> u32 {
    made(|place| cu!(cuStreamIsCapturing(stream, place)))
}

fn join(stream: Handle, other: Handle) -> Code {
    let event = new_event();
    match cu!(cuEventRecord(event, other)) {
        SUCCESS => cu!(cuStreamWaitEvent(stream, event, 0)),
        error => error,
    }
}

fn nodes(graph: Handle) -> usize {
    made(|place| cu!(cuGraphGetNodes(graph, std::ptr::null_mut(), place)))
}

fn instantiate(graph: Handle) -> Handle {
    made(|place| cu!(cuGraphInstantiateWithFlags(place, graph, 0)))
}

#[test]
fn a_capture_runs_nothing_and_its_graph_runs_all() {
    let _one = alone();
    let stream = new_stream();
    let (a, b) = (filled(stream, 1), filled(stream, 2));
    begin(stream);
    assert_eq!(status(stream), 1);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(b, a, 64, stream)), SUCCESS);
    assert_eq!(set(a, 3, stream), SUCCESS);
    let graph = end(stream).unwrap();
    assert_eq!((status(stream), nodes(graph)), (0, 2));
    assert_eq!((read(a, stream), read(b, stream)), (1, 2), "nothing ran");
    let exec = instantiate(graph);
    assert_eq!(cu!(cuGraphDestroy(graph)), SUCCESS);
    for (want, now) in [((3, 1), 1), ((3, 7), 7)] {
        assert_eq!(set(a, now, stream), SUCCESS);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), SUCCESS);
        assert_eq!((read(a, stream), read(b, stream)), want);
    }
    // As a child of another.
    begin(stream);
    assert_eq!(set(a, 9, stream), SUCCESS);
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), SUCCESS);
    let outer = end(stream).unwrap();
    assert_eq!(nodes(outer), 2);
    let outer = instantiate(outer);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), SUCCESS);
    assert_eq!(cu!(cuGraphLaunch(outer, stream)), SUCCESS);
    assert_eq!((read(a, stream), read(b, stream)), (3, 9));
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), INVALID_VALUE, "it is gone");
}

#[test]
fn streams_fork_and_join() {
    let _one = alone();
    let (stream, side) = (new_stream(), new_stream());
    let (a, b) = (filled(stream, 1), filled(stream, 2));
    begin(stream);
    assert_eq!(join(side, stream), SUCCESS);
    assert_eq!(status(side), 1, "it waits for the capture");
    assert_eq!((set(a, 5, side), set(b, 6, stream)), (SUCCESS, SUCCESS));
    assert_eq!(end(side), Err(CAPTURE_UNMATCHED));
    assert_eq!(join(stream, side), SUCCESS);
    let graph = end(stream).unwrap();
    assert_eq!((status(side), nodes(graph)), (0, 2));
    assert_eq!(cu!(cuGraphLaunch(instantiate(graph), side)), SUCCESS);
    assert_eq!((read(a, stream), read(b, stream)), (5, 6));

    // By way of a third stream.
    let third = new_stream();
    begin(stream);
    assert_eq!((join(side, stream), set(a, 5, side)), (SUCCESS, SUCCESS));
    assert_eq!((join(third, side), set(b, 6, third), join(stream, third)), (SUCCESS, SUCCESS, SUCCESS));
    assert_eq!(nodes(end(stream).unwrap()), 2);

    // One that has drawn nothing in needs no join.
    begin(stream);
    assert_eq!((join(side, stream), set(a, 5, stream)), (SUCCESS, SUCCESS));
    assert!(end(stream).is_ok());

    begin(stream);
    assert_eq!((join(side, stream), set(a, 5, side)), (SUCCESS, SUCCESS));
    assert_eq!(end(stream), Err(CAPTURE_UNJOINED));
    assert_eq!((status(stream), status(side)), (0, 0));
    // What joined before its last work has not joined.
    begin(stream);
    assert_eq!((join(side, stream), set(a, 5, side), join(stream, side), set(a, 6, side)), (0, 0, 0, 0));
    assert_eq!(end(stream), Err(CAPTURE_UNJOINED));
}

#[test]
fn a_caller_is_told_where_a_stream_is() {
    let _one = alone();
    let (stream, side) = (new_stream(), new_stream());
    let a = filled(stream, 1);
    let place = |stream| {
        let (mut status, mut id, mut graph, mut nodes, mut count) = (9, 0, 0, std::ptr::null(), 99);
        let told = cu!(cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count));
        assert_eq!(told, SUCCESS);
        // SAFETY: so many are there until the next question.
        let nodes: Vec<_> = (0..count).map(|at| unsafe { nodes.add(at).read() }).collect();
        (status, id, nodes)
    };
    assert_eq!(place(stream), (0, 0, vec![]));
    begin(stream);
    let (status, id, at) = place(stream);
    assert!(status == 1 && id != 0 && at.is_empty());
    set(a, 1, stream);
    let (_, same, first) = place(stream);
    assert!(same == id && first.len() == 1);
    join(side, stream);
    assert_eq!(place(side), (1, id, first.clone()));
    set(a, 1, side);
    set(a, 1, stream);
    join(stream, side);
    assert_eq!(place(stream).2.len(), 2);
    set(a, 1, stream);
    assert_eq!(place(stream).2.len(), 1);
    end(stream).unwrap();
}

#[test]
fn what_breaks_a_capture() {
    let _one = alone();
    let (stream, other) = (new_stream(), new_stream());
    let a = filled(stream, 1);
    let old = new_event();
    assert_eq!(cu!(cuEventRecord(old, other)), SUCCESS);
    let broken = |what: &str, by: &dyn Fn() -> Code, code: Code| {
        begin(stream);
        assert_eq!(by(), code, "{what}");
        assert_eq!(status(stream), 2, "{what}");
        assert_eq!(set(a, 2, stream), CAPTURE_INVALIDATED, "{what}");
        assert_eq!(end(stream), Err(CAPTURE_INVALIDATED), "{what}");
        assert_eq!((status(stream), read(a, stream)), (0, 1), "{what}");
    };
    broken("waiting for it", &|| cu!(cuStreamSynchronize(stream)), CAPTURE_UNSUPPORTED);
    broken("asking whether it is done", &|| cu!(cuStreamQuery(stream)), CAPTURE_UNSUPPORTED);
    broken("waiting for all", &|| cu!(cuCtxSynchronize()), CAPTURE_UNSUPPORTED);
    broken("an event from outside", &|| cu!(cuStreamWaitEvent(stream, old, 0)), CAPTURE_ISOLATION);
    broken("an allocation", &|| cu!(cuMemAlloc_v2(&mut 0, 64)), CAPTURE_UNSUPPORTED);
    broken("destroying it", &|| cu!(cuStreamDestroy_v2(stream)), CAPTURE_UNSUPPORTED);
    let event = new_event();
    let asked = || {
        cu!(cuEventRecord(event, stream));
        cu!(cuEventQuery(event))
    };
    broken("asking its event", &asked, CAPTURED_EVENT);
    // The event stays that of a capture.
    assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), CAPTURED_EVENT);
    assert_eq!(cu!(cuEventRecord(event, other)), SUCCESS);
    assert_eq!((cu!(cuEventQuery(event)), cu!(cuStreamWaitEvent(stream, event, 0))), (SUCCESS, SUCCESS));

    // Two captures.
    begin(stream);
    begin(other);
    assert_eq!(join(stream, other), CAPTURE_MERGE);
    assert_eq!((end(stream), end(other)), (Err(CAPTURE_INVALIDATED), Err(CAPTURE_INVALIDATED)));
}

#[test]
fn what_a_capture_bears() {
    let _one = alone();
    let (stream, other) = (new_stream(), new_stream());
    let a = filled(stream, 1);
    begin(stream);
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, 0)), ILLEGAL_STATE);
    assert_eq!(cu!(cuStreamWaitEvent(stream, new_event(), 0)), SUCCESS, "an event that was never recorded");
    assert_eq!((set(a, 2, other), cu!(cuStreamSynchronize(other))), (SUCCESS, SUCCESS));
    // Without captures of its own, another thread may wait; and this one if it says so.
    let allocated = || made(|place| cu!(cuMemAlloc_v2(place, 64)));
    let elsewhere = std::thread::spawn(move || {
        cu!(cuCtxSetCurrent(CONTEXT));
        let address = allocated();
        (cu!(cuMemFree_v2(address)), end(stream))
    });
    assert_eq!(elsewhere.join().unwrap(), (SUCCESS, Err(CAPTURE_WRONG_THREAD)));
    let mut mode = Mode::Relaxed as u32;
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut mode)), SUCCESS);
    assert_eq!(mode, Mode::Global as u32);
    assert_eq!(cu!(cuMemFree_v2(allocated())), SUCCESS);
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut mode)), SUCCESS);
    assert_eq!((mode, THREAD_MODE.get()), (Mode::Relaxed as u32, Mode::Global));
    assert_eq!(nodes(end(stream).unwrap()), 0);
    assert_eq!(end(stream), Err(ILLEGAL_STATE));
    assert_eq!(read(a, stream), 2);
}

#[test]
fn the_default_stream_beside_captures() {
    let _one = alone();
    let (blocking, free) = (made(|place| cu!(cuStreamCreate(place, 0))), new_stream());
    let a = filled(free, 1);
    begin(free);
    assert_eq!((status(0), set(a, 2, 0)), (0, SUCCESS), "nobody waits for a stream that does not block");
    end(free).unwrap();
    begin(blocking);
    assert_eq!(cu!(cuStreamIsCapturing(0, &mut 0)), CAPTURE_IMPLICIT);
    assert_eq!(status(blocking), 1, "a question breaks nothing");
    assert_eq!(set(a, 3, 0), CAPTURE_IMPLICIT);
    assert_eq!(end(blocking), Err(CAPTURE_INVALIDATED));
    assert_eq!(cu!(cuStreamBeginCapture_v2(0, 0)), CAPTURE_UNSUPPORTED);
    assert_eq!(read(a, 0), 2);
}

static OPEN: AtomicBool = AtomicBool::new(false);

/// Until the gate is open, and no longer than a few seconds.
unsafe extern "C" fn gate(_: *mut c_void) {
    let start = Instant::now();
    while !OPEN.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn work_behind_a_function_is_late() {
    let _one = alone();
    OPEN.store(false, Ordering::Release);
    let [late, behind, free] = [(); 3].map(|()| new_stream());
    let (a, b) = (filled(late, 1), filled(late, 1));
    assert_eq!(cu!(cuLaunchHostFunc(late, Some(gate), std::ptr::null_mut())), SUCCESS);
    let mut bytes = [2u8; 64];
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(a, bytes.as_ptr().cast(), 64, late)), SUCCESS);
    // Pageable memory was read at the call.
    bytes.fill(77);
    let event = new_event();
    assert_eq!(cu!(cuEventRecord(event, late)), SUCCESS);
    assert_eq!((cu!(cuEventQuery(event)), cu!(cuStreamQuery(late))), (NOT_READY, NOT_READY));
    assert_eq!(cu!(cuStreamWaitEvent(behind, event, 0)), SUCCESS);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(b, a, 64, behind)), SUCCESS);
    assert_eq!(cu!(cuStreamDestroy_v2(behind)), SUCCESS);
    assert_eq!((read(a, free), read(b, free)), (1, 1), "nobody has waited");
    OPEN.store(true, Ordering::Release);
    assert_eq!(cu!(cuCtxSynchronize()), SUCCESS);
    assert_eq!((read(a, free), read(b, free)), (2, 2));
    assert_eq!(
        (cu!(cuEventQuery(event)), cu!(cuStreamQuery(late)), cu!(cuStreamQuery(behind))),
        (0, 0, INVALID_HANDLE)
    );
}

#[test]
fn times_of_events() {
    let _one = alone();
    let stream = new_stream();
    let [start, end] = [(); 2].map(|()| new_event());
    let mut elapsed = 0f32;
    assert_eq!(cu!(cuEventElapsedTime(&mut elapsed, start, end)), INVALID_HANDLE);
    assert_eq!(cu!(cuEventRecord(start, stream)), SUCCESS);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(cu!(cuEventRecord(end, stream)), SUCCESS);
    assert_eq!(cu!(cuEventElapsedTime_v2(&mut elapsed, start, end)), SUCCESS);
    assert!((5.0..5000.0).contains(&elapsed), "{elapsed}");
    assert_eq!(cu!(cuEventDestroy_v2(start)), SUCCESS);
    assert_eq!(cu!(cuEventQuery(start)), INVALID_HANDLE);
}

#[test]
fn memory_is_checked() {
    let _one = alone();
    let stream = new_stream();
    let used = || {
        let mut bytes = 0u64;
        assert_eq!(cu!(cuMemPoolGetAttribute(POOL, 7, (&raw mut bytes).cast())), SUCCESS);
        bytes
    };
    let before = used();
    let a = filled(stream, 1);
    assert_eq!(used(), before + 64);
    assert_eq!(set(a + 1, 1, stream), INVALID_VALUE, "past the end");
    let mut bytes = [0u8; 65];
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), a, 65, stream)), INVALID_VALUE);
    assert_eq!(cu!(cuMemsetD2D8Async(a, 32, 9, 16, 2, stream)), SUCCESS);
    assert_eq!(cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), a, 64)), SUCCESS);
    let want: Vec<u8> = (0..64).map(|at| if at % 32 < 16 { 9 } else { 1 }).collect();
    assert_eq!(bytes[..64], want);

    let mut kind = 0u32;
    let host = (&raw const kind) as u64;
    assert_eq!(cu!(cuPointerGetAttribute((&raw mut kind).cast(), 2, a + 63)), SUCCESS);
    assert_eq!(kind, 2);
    assert_eq!(cu!(cuPointerGetAttribute((&raw mut kind).cast(), 2, host)), INVALID_VALUE);
    assert_eq!(cu!(cuPointerGetAttributes(1, &2, &(&raw mut kind).cast(), host)), SUCCESS);
    assert_eq!(kind, 0, "pageable memory");
    let pinned: *mut c_void = {
        let mut place = std::ptr::null_mut();
        assert_eq!(cu!(cuMemHostAlloc(&mut place, 100, 0)), SUCCESS);
        place
    };
    assert_eq!(cu!(cuPointerGetAttributes(1, &2, &(&raw mut kind).cast(), pinned as u64 + 99)), SUCCESS);
    assert_eq!(kind, 1, "page-locked memory");
    assert_eq!(cu!(cuMemFreeHost(pinned)), SUCCESS);

    let mut range = (0, 0);
    assert_eq!(cu!(cuMemGetAddressRange_v2(&mut range.0, &mut range.1, a + 8)), SUCCESS);
    assert_eq!(range, (a, 64));
    assert_eq!(cu!(cuMemFreeAsync(a, stream)), SUCCESS);
    assert_eq!(cu!(cuMemFreeAsync(a, stream)), INVALID_VALUE, "twice");
    assert_eq!(set(a, 1, stream), INVALID_VALUE, "freed");
    assert_eq!(used(), before);
}

#[test]
fn panics_are_errors() {
    let _one = alone();
    assert_eq!(super::state::call(|_| panic!("on purpose")), UNKNOWN);
    assert_eq!(super::state::call(|_| Ok(())), UNKNOWN, "it stays");
    super::state::Turn::take().sticky = None;
    assert_eq!(super::state::call(|_| Ok(())), SUCCESS);
}
