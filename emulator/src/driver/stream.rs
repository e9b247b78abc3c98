//! Streams.

use super::capture::THREAD_MODE;
use super::codes::*;
use super::op::{HostCall, Op};
use super::queue::Queue;
use super::state::{CONTEXT, CURRENT, Handle, State, call, call_in_context};

/// `CU_STREAM_LEGACY`, which the null stream is.
pub const LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`. (All threads share it here.)
pub const PER_THREAD: Handle = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// The most urgent priority; 0 is the least.
const HIGHEST_PRIORITY: i32 = -5;

/// A stream.
pub struct Stream {
    /// The legacy default stream waits for it, and it for that.
    pub blocking: bool,
    /// Lower comes first.
    pub priority: i32,
    /// The capture that it is in.
    pub capture: Option<Handle>,
    /// What it has not done yet.
    pub queue: Queue,
    /// It is gone when its work is done.
    pub destroyed: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self { blocking: true, priority: 0, capture: None, queue: Queue::default(), destroyed: false }
    }
}

/// The stream of a caller's handle, in which 0 is the legacy default stream of the current context.
pub fn resolve(stream: Handle) -> Outcome<Handle> {
    match stream {
        0 if CURRENT.get() == 0 => Err(INVALID_CONTEXT),
        0 => Ok(LEGACY),
        stream => Ok(stream),
    }
}

impl State {
    /// A stream that was not destroyed.
    pub fn stream(&mut self, stream: Handle) -> Outcome<&mut Stream> {
        self.streams.get_mut(&stream).filter(|stream| !stream.destroyed).ok_or(INVALID_HANDLE)
    }

    fn create_stream(&mut self, flags: u32, priority: i32) -> Outcome<Handle> {
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let handle = self.new_handle();
        let priority = priority.clamp(HIGHEST_PRIORITY, 0);
        self.streams.insert(handle, Stream { blocking: flags != NON_BLOCKING, priority, ..Stream::default() });
        Ok(handle)
    }
}

/// `cuStreamCreate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, flags: u32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
}

/// `cuStreamCreateWithPriority`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: u32, priority: i32) -> Code {
    call_in_context(|turn| {
        let handle = turn.create_stream(flags, priority)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(stream, handle) }
    })
}

/// `cuStreamDestroy_v2`: of a stream that is captured it is refused, and breaks the capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    call(|turn| {
        if stream <= PER_THREAD {
            return Err(INVALID_HANDLE);
        }
        turn.stream(stream)?;
        turn.refuse_captured(stream, CAPTURE_UNSUPPORTED)?;
        turn.stream(stream)?.destroyed = true;
        turn.advance();
        Ok(())
    })
}

/// `cuStreamGetPriority`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(stream: Handle, priority: *mut i32) -> Code {
    call(|turn| {
        let of_stream = turn.stream(resolve(stream)?)?.priority;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(priority, of_stream) }
    })
}

/// `cuStreamGetFlags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(stream: Handle, flags: *mut u32) -> Code {
    call(|turn| {
        let blocking = turn.stream(resolve(stream)?)?.blocking;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(flags, if blocking { 0 } else { NON_BLOCKING }) }
    })
}

/// `cuStreamGetCtx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> Code {
    call(|turn| {
        turn.stream(resolve(stream)?)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(context, CONTEXT) }
    })
}

/// `cuCtxGetStreamPriorityRange`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> Code {
    // SAFETY: the caller's, as CUDA documents: either may be null, which is then not written.
    let _ = unsafe { (put(least, 0), put(greatest, HIGHEST_PRIORITY)) };
    SUCCESS
}

/// `cuStreamSynchronize`: of a captured stream it is refused, and breaks the capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    call(|turn| {
        let stream = resolve(stream)?;
        turn.stream(stream)?;
        turn.refuse_captured(stream, CAPTURE_UNSUPPORTED)?;
        turn.refuse_implicit(stream)?;
        let tails = turn.tails(stream);
        turn.wait_until(|state| tails.iter().all(|tail| state.is_done(*tail)))
    })
}

/// `cuStreamQuery`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    call(|turn| {
        let stream = resolve(stream)?;
        turn.stream(stream)?;
        turn.refuse_captured(stream, CAPTURE_UNSUPPORTED)?;
        turn.refuse_implicit(stream)?;
        if turn.tails(stream).is_empty() { Ok(()) } else { Err(NOT_READY) }
    })
}

/// `cuLaunchHostFunc`: the function runs on a thread of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut std::ffi::c_void)>,
    data: *mut std::ffi::c_void,
) -> Code {
    call(|turn| {
        let function = function.ok_or(INVALID_VALUE)?;
        turn.submit(resolve(stream)?, Op::Host(HostCall { function, data: data as u64 }))
    })
}

/// `cuCtxSynchronize`: beside captures it is refused, and breaks them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> Code {
    call_in_context(|turn| {
        let captures: Vec<_> = turn.captures.keys().copied().collect();
        if !captures.is_empty() {
            return Err(turn.break_captures(&captures, CAPTURE_UNSUPPORTED));
        }
        turn.wait_until(|state| state.streams.values().all(|stream| stream.queue.is_empty()))
    })
}

/// `cuThreadExchangeStreamCaptureMode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Code {
    if mode.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents; it is not null.
    match super::capture::Mode::of(unsafe { mode.read() }) {
        Err(error) => error,
        Ok(new) => {
            let old = THREAD_MODE.replace(new);
            // SAFETY: as above.
            code(unsafe { put(mode, old as u32) })
        }
    }
}
