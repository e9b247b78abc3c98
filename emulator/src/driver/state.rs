//! All that the driver knows, behind one lock: calls of several threads come one after another.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use super::capture::Capture;
use super::codes::*;
use super::event::Event;
use super::graph::Graph;
use super::module::{Function, Loaded};
use super::stream::{LEGACY, PER_THREAD, Stream};
use crate::memory::Memory;

/// What names an object to the caller: a pointer to it elsewhere, a number here. Numbers are not given twice, so that uses of what
/// was destroyed are found.
pub type Handle = u64;

/// The only device's primary context.
pub const CONTEXT: Handle = 0x00C0_DE00;

thread_local! {
    /// The context of this thread, or 0.
    pub static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

/// All that the driver knows.
pub struct State {
    /// Device memory.
    pub memory: Memory,
    /// Page-locked host memory that was allocated here, by address.
    pub pinned: BTreeMap<u64, usize>,
    /// Of `memory`: what was allocated in stream order.
    pub pooled: HashMap<u64, usize>,
    /// The most bytes in `pooled` since it was asked for last.
    pub pooled_high: usize,
    /// By handle; those that are always there included.
    pub streams: BTreeMap<Handle, Stream>,
    /// By handle.
    pub events: HashMap<Handle, Event>,
    /// By handle.
    pub modules: HashMap<Handle, Arc<Loaded>>,
    /// By handle.
    pub functions: HashMap<Handle, Function>,
    /// By handle.
    pub graphs: HashMap<Handle, Arc<Graph>>,
    /// Graphs that can be launched, by handle.
    pub execs: HashMap<Handle, Arc<Graph>>,
    /// Those that are under way, by handle.
    pub captures: BTreeMap<Handle, Capture>,
    /// An error of work, which every later call returns.
    pub sticky: Option<Code>,
    next: Handle,
}

impl Default for State {
    fn default() -> Self {
        let fixed = [(LEGACY, Stream::default()), (PER_THREAD, Stream::default())];
        Self {
            memory: Memory::default(),
            pinned: BTreeMap::new(),
            pooled: HashMap::new(),
            pooled_high: 0,
            streams: fixed.into(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            captures: BTreeMap::new(),
            sticky: None,
            next: 0x1000,
        }
    }
}

impl State {
    /// A handle that was never given.
    pub fn new_handle(&mut self) -> Handle {
        self.next += 16;
        self.next
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
/// Told when work that waited has been done.
pub static PROGRESS: Condvar = Condvar::new();

/// The lock, held by one call.
pub struct Turn(Option<MutexGuard<'static, State>>);

impl Turn {
    /// Waits for other calls.
    pub fn take() -> Self {
        Self(Some(STATE.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Lets others go on until this holds.
    pub fn wait_until(&mut self, done: impl Fn(&State) -> bool) -> Outcome {
        while !done(self) && self.sticky.is_none() {
            let guard = self.0.take().expect("held");
            self.0 = Some(PROGRESS.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
        self.sticky.map_or(Ok(()), Err)
    }
}

impl Deref for Turn {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_deref().expect("held")
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_deref_mut().expect("held")
    }
}

/// A call: alone with the state, and refused behind an error of earlier work. A panic, which must not pass through functions that C
/// calls, is such an error.
pub fn call(run: impl FnOnce(&mut Turn) -> Outcome) -> Code {
    let mut turn = Turn::take();
    if let Some(error) = turn.sticky {
        return error;
    }
    let ran = catch_unwind(AssertUnwindSafe(|| run(&mut turn)));
    code(ran.unwrap_or_else(|_| {
        eprintln!("PTX emulator: the driver panicked");
        // A wait that was torn gave the lock away.
        let mut turn = if turn.0.is_some() { turn } else { Turn::take() };
        Err(turn.fail(UNKNOWN))
    }))
}

/// A [`call`] that needs a current context.
pub fn call_in_context(run: impl FnOnce(&mut Turn) -> Outcome) -> Code {
    if CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    call(run)
}
