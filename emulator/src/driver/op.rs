//! Work of a stream: run at once, kept in a queue behind work that is late, or recorded into a graph.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::codes::*;
use super::graph::Graph;
use super::module::Loaded;
use super::state::{Handle, State};
use crate::launch::{self, Launch};

/// One side of a copy.
#[derive(Clone, Debug)]
pub enum Place {
    /// Memory of the process.
    Host(u64),
    /// Device memory.
    Device(u64),
    /// Host memory as it was at the call.
    Staged(Arc<[u8]>),
}

/// Rows of bytes from one place to another.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Where the first row is read.
    pub from: Place,
    /// Bytes from one row to the next there.
    pub from_pitch: usize,
    /// Where the first row is written.
    pub to: Place,
    /// Bytes from one row to the next there.
    pub to_pitch: usize,
    /// Bytes of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// A function of the caller's: its address, and that of its argument.
#[derive(Clone, Copy, Debug)]
pub struct HostCall {
    /// `CUhostFn`.
    pub function: unsafe extern "C" fn(*mut std::ffi::c_void),
    /// What it is called with.
    pub data: u64,
}

impl HostCall {
    /// Calls it.
    pub fn run(self) {
        // SAFETY: who enqueued it vouches for function and argument until then, as CUDA documents.
        unsafe { (self.function)(self.data as *mut std::ffi::c_void) };
    }
}

/// A piece of work.
#[derive(Clone)]
pub enum Op {
    /// A kernel, its place in the module, and its launch.
    Kernel(Arc<Loaded>, usize, Arc<Launch>),
    /// A copy.
    Copy(Copy),
    /// Rows of a repeated pattern.
    Fill {
        /// Where the first row begins.
        address: u64,
        /// Bytes from one row to the next.
        pitch: usize,
        /// 1, 2 or 4 bytes.
        pattern: Vec<u8>,
        /// Patterns of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// Frees device memory.
    Free(u64),
    /// A call of the caller's function.
    Host(HostCall),
    /// A graph, whole.
    Graph(Arc<Graph>),
    /// Nothing: a node that only orders.
    Empty,
    /// An event is reached for the so manieth time. In queues alone.
    Reach(Handle, u64),
    /// Goes on when a stream has done so much. In queues alone.
    Wait(super::queue::Ticket),
}

/// Bytes from the first of the first row to behind the last of the last.
fn extent(pitch: usize, width: usize, height: usize) -> Option<usize> {
    height.checked_sub(1)?.checked_mul(pitch)?.checked_add(width)
}

impl State {
    fn device_range(&self, what: &str, address: u64, pitch: usize, width: usize, height: usize) -> Outcome {
        let overlaps = height > 1 && pitch < width;
        let whole = extent(pitch, width, height).is_some_and(|bytes| self.memory.has(address, bytes));
        if whole && !overlaps {
            return Ok(());
        }
        let known = match self.memory.allocation(address) {
            Some((start, length)) => format!("in an allocation of {length} bytes at {start:#x}"),
            None => "in no allocation".into(),
        };
        eprintln!("PTX emulator: {what} of {height} x {width} bytes, {pitch} apart, at {address:#x}, which is {known}");
        Err(INVALID_VALUE)
    }

    /// Where a side of a copy begins, if all of it is there.
    fn side(&self, what: &str, place: &Place, pitch: usize, width: usize, height: usize) -> Outcome<u64> {
        match place {
            Place::Device(address) => self.device_range(what, *address, pitch, width, height).map(|()| *address),
            Place::Host(0) => Err(INVALID_VALUE),
            Place::Host(address) => Ok(*address),
            Place::Staged(bytes) => match extent(pitch, width, height) {
                Some(extent) if extent <= bytes.len() => Ok(bytes.as_ptr() as u64),
                _ => Err(INVALID_VALUE),
            },
        }
    }

    /// Whether a copy or a fill stays inside allocations, as they are now.
    pub fn check(&self, op: &Op) -> Outcome {
        match op {
            Op::Copy(Copy { width: 0, .. } | Copy { height: 0, .. }) => Ok(()),
            Op::Copy(Copy { from, from_pitch, to, to_pitch, width, height }) => {
                if matches!(to, Place::Staged(_)) {
                    return Err(INVALID_VALUE);
                }
                self.side("a copy from device memory", from, *from_pitch, *width, *height)?;
                self.side("a copy to device memory", to, *to_pitch, *width, *height).map(drop)
            }
            Op::Fill { width: 0, .. } | Op::Fill { height: 0, .. } => Ok(()),
            Op::Fill { address, pitch, pattern, width, height } => {
                let row = width.checked_mul(pattern.len()).ok_or(INVALID_VALUE)?;
                self.device_range("a fill", *address, *pitch, row, *height)
            }
            Op::Free(address) => match self.memory.allocation(*address) {
                Some((start, _)) if start == *address => Ok(()),
                _ => {
                    eprintln!("PTX emulator: a free of {address:#x}, where no allocation begins");
                    Err(INVALID_VALUE)
                }
            },
            _ => Ok(()),
        }
    }

    /// Does it. An error of a kernel stays; others are the caller's to keep.
    pub fn run(&mut self, op: &Op) -> Outcome {
        self.check(op)?;
        match op {
            Op::Kernel(loaded, kernel, launch) => self.run_kernel(loaded, *kernel, launch)?,
            Op::Copy(Copy { width: 0, .. } | Copy { height: 0, .. }) => {}
            Op::Copy(Copy { from, from_pitch, to, to_pitch, width, height }) => {
                let from = self.side("a copy", from, *from_pitch, *width, *height)?;
                let to = self.side("a copy", to, *to_pitch, *width, *height)?;
                for row in 0..*height {
                    let (from, to) = (from + (row * from_pitch) as u64, to + (row * to_pitch) as u64);
                    // SAFETY: device sides lie in live allocations (`side`), staged ones are owned by the operation, and
                    // the caller vouches for those of the host. Either may overlap.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, *width) };
                }
            }
            Op::Fill { address, pitch, pattern, width, height } => {
                let row = pattern.len() * width;
                for start in (0..*height).map(|row| *address + (row * pitch) as u64).take_while(|_| row > 0) {
                    // SAFETY: all rows lie in one live allocation, checked above; all who touch device memory hold the lock.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, row) };
                    match pattern[..] {
                        [byte] => bytes.fill(byte),
                        _ => bytes.chunks_exact_mut(pattern.len()).for_each(|place| place.copy_from_slice(pattern)),
                    }
                }
            }
            Op::Free(address) => self.release(*address),
            Op::Host(call) => call.run(),
            Op::Graph(graph) => self.run_graph(graph)?,
            Op::Reach(event, record) => self.reach(*event, *record),
            Op::Empty | Op::Wait(_) => {}
        }
        Ok(())
    }

    fn run_kernel(&mut self, loaded: &Arc<Loaded>, kernel: usize, launch: &Launch) -> Outcome {
        let name = &loaded.module.kernels[kernel].name;
        let ranges = self.memory.all();
        let start = std::time::Instant::now();
        // A panic must not pass through functions that C calls.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: these are live allocations, none of which is freed while this call has the state; others use device memory through it alone.
            unsafe { launch::run(&loaded.module, kernel, launch, &ranges) }
        }));
        let ran = ran.unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("the interpreter panicked: {}", words.or(panic.downcast_ref().copied()).unwrap_or("?")))
        });
        let Launch { grid, block, cluster, cooperative, dynamic_shared, .. } = launch;
        let shape = || {
            format!(
                "{name}<<<{grid:?}, {block:?}>>> cluster {cluster}, cooperative {cooperative}, shared {dynamic_shared}"
            )
        };
        if std::env::var_os("SCALED_GEMM_EMULATED_TRACE").is_some() {
            eprintln!("PTX emulator: {} in {:?}", shape(), start.elapsed());
        }
        ran.map_err(|words| {
            eprintln!("PTX emulator: {}: {words}", shape());
            self.fail(ILLEGAL_ADDRESS)
        })
    }

    fn run_graph(&mut self, graph: &Graph) -> Outcome {
        for node in &graph.nodes {
            // What the graph was captured with may be gone.
            self.run(&node.op).map_err(|error| {
                eprintln!("PTX emulator: a node of a graph failed with code {error}");
                self.fail(ILLEGAL_ADDRESS)
            })?;
        }
        Ok(())
    }

    /// Keeps an error for all later calls, and drops work that waits.
    pub fn fail(&mut self, error: Code) -> Code {
        self.sticky.get_or_insert(error);
        self.streams.values_mut().for_each(|stream| stream.queue.clear());
        super::state::PROGRESS.notify_all();
        error
    }

    /// Frees what is known to be allocated.
    fn release(&mut self, address: u64) {
        self.memory.free(address);
        self.pooled.remove(&address);
    }
}
