//! Memory and streams: no product reads what is freed or overwritten, and what belongs to another handle is refused.
//!
//! Tests that could break their context run in a process of their own (`hazards::alone`).
#![cfg(feature = "cuda")]

mod common;
#[path = "common/hazards.rs"]
mod hazards;

use std::sync::Arc;
use std::time::Instant;

use common::gemm::*;
use common::*;
use hazards::*;
use scaled_gemm::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use scaled_gemm::{
    Activation, Bf16Gemm, DType, DeviceBuffer, Error, GemmArgs, Handle, HostQuantMatrix, MatMut, MatRef, QuantMatrix,
    QuantizeTo, Recipe, RescaleArgs, Scheme, VecRef,
};

// One B, two streams.

/// H1 is late and multiplies by B; H2, on whose stream B lies, multiplies by it at once; then `change` happens to B on H2.
/// H1's product must be that of the old B. `change` gives back what must live until H1 is done.
fn late_reader<T>(change: impl FnOnce(&Handle, QuantMatrix, &CudaSlice<u8>) -> T) {
    let Some(handle) = handle() else { return };
    let shape @ [_, n, k] = [64, 2048, 2048];
    let [late, early] = two_handles(handle);
    let Some(product) = RowProduct::new(&early, shape) else { return };
    let RowProduct { ops, extras, case, mut plan, want } = product;
    let mut late_plan = late.plan(plan.desc()).unwrap();
    assert!(execute(&late, &mut late_plan, &ops, &extras, &case) == want, "both handles compute the same");
    let mut outputs = [&late, &early].map(|handle| Output::new(handle, &ops, &extras, &case));
    let other = upload_f32(&early, &tiled(&mut Noise::new(83), n, k));
    // The quantizer's kernel is loaded now and not while H1 is held back.
    let x = MatRef::new(&other, DType::F32, n, k).unwrap();
    drop(early.quantize(&x, Recipe::new(ROWS_BY_ROWS.1)).unwrap());
    late.synchronize().unwrap();
    early.synchronize().unwrap();

    let Operands { a, b, .. } = ops;
    let stall = Stall::on(&late);
    late_plan.execute(&late, outputs[0].args_of(&a, &b, &extras, &case)).unwrap();
    plan.execute(&early, outputs[1].args_of(&a, &b, &extras, &case)).unwrap();
    let rest = change(&early, b, &other);
    stall.release();
    assert!(outputs[1].read(&early, "early") == want, "the early product");
    assert!(outputs[0].read(&late, "late") == want, "the late product is not that of the old B");
    drop(rest);
}

#[test]
fn a_matrix_dropped_after_a_late_and_an_early_product() {
    alone(|| {
        late_reader(|early, b, _| {
            let lengths = [b.codes().len(), b.scales().len()];
            drop(b);
            // The allocator gives the same memory again; zeros, so that nothing here waits for a copy.
            lengths.map(|len| [(); 8].map(|()| early.stream().alloc_zeros::<u8>(len).unwrap()))
        });
    });
}

#[test]
fn a_matrix_written_after_a_late_and_an_early_product() {
    alone(|| {
        late_reader(|early, mut b, other| {
            let x = MatRef::new(other, DType::F32, b.rows(), b.cols()).unwrap();
            early.quantize_into(&x, Recipe::new(b.scheme()), QuantizeTo::Plain(&mut b)).unwrap();
            b
        });
    });
}

// Slices and addresses of others.

/// How memory of another library comes into a buffer.
#[derive(Clone, Copy, Debug)]
enum Taken {
    Slice,
    Raw,
}

impl Taken {
    fn over(self, slice: CudaSlice<u8>) -> DeviceBuffer {
        let (home, bytes) = (slice.stream().clone(), slice.len());
        match self {
            Self::Slice => DeviceBuffer::from_slice(slice).unwrap(),
            Self::Raw => {
                let address = slice.device_ptr(&home).0;
                // SAFETY: the slice owns these bytes, lives as long as the buffer, frees them in the order of its stream, and
                // was used on that stream alone.
                unsafe { DeviceBuffer::from_raw(&home, address, bytes, slice) }.unwrap()
            }
        }
    }
}

const ROWS: usize = 512;
const COLS: usize = 1024;

/// A handle, and a stream of its context that is home to memory: of nobody that this crate knows, then of another handle.
fn taken_over(test: impl Fn(&Handle, &Arc<CudaStream>, &str)) {
    let Some(handle) = handle() else { return };
    let home = handle.stream().context().new_stream().unwrap();
    test(&handle, &home, "a stream without a handle");
    let [handle, other] = two_handles(handle);
    test(&handle, other.stream(), "another handle's stream");
}

/// The bytes of X, X quantized by rows, and a target for that on the device. All kernels that the tests use are loaded.
fn cast(handle: &Handle, seed: u64) -> (Vec<u8>, HostQuantMatrix, QuantMatrix) {
    let x = tiled(&mut Noise::new(seed), ROWS, COLS);
    let bytes = bytes_of(DType::F32, x.iter());
    let (scheme, _) = ROWS_BY_ROWS;
    let buffer = handle.upload(&bytes).unwrap();
    let x_on_device = MatRef::new(&buffer, DType::F32, ROWS, COLS).unwrap();
    let q = handle.quantize(&x_on_device, Recipe::new(scheme)).unwrap();
    let mut y = handle.alloc(bytes.len()).unwrap();
    handle.dequantize_into(&q, &mut MatMut::new(&mut y, DType::F32, ROWS, COLS).unwrap()).unwrap();
    handle.synchronize().unwrap();
    (bytes, quantized(&x, scheme), QuantMatrix::zeros(handle, scheme, ROWS, COLS).unwrap())
}

fn cast_into(handle: &Handle, buffer: &DeviceBuffer, target: &mut QuantMatrix) {
    let x = MatRef::new(buffer, DType::F32, ROWS, COLS).unwrap();
    handle.quantize_into(&x, Recipe::new(target.scheme()), QuantizeTo::Plain(target)).unwrap();
}

/// What its stream still writes when the memory is taken over is waited for by the first reader, on another stream.
fn late_producer(taken: Taken) {
    taken_over(|handle, home, whose| {
        let (bytes, want, mut target) = cast(handle, 87);
        let source = home.clone_htod(&bytes).unwrap();
        let mut slice = home.clone_htod(&vec![0xFFu8; bytes.len()]).unwrap();
        home.synchronize().unwrap();
        handle.synchronize().unwrap();
        let stall = Stall::on_stream(home);
        home.memcpy_dtod(&source, &mut slice).unwrap();
        let buffer = taken.over(slice);
        cast_into(handle, &buffer, &mut target);
        stall.release();
        let words = format!("{taken:?} of {whose}, read before its late producer?");
        assert_same_bits(&target.to_host(handle).unwrap(), &want, &words);
        home.synchronize().unwrap();
    });
}

#[test]
fn a_slice_taken_over_is_read_behind_its_late_producer() {
    alone(|| late_producer(Taken::Slice));
}

#[test]
fn an_address_taken_over_is_read_behind_its_late_producer() {
    alone(|| late_producer(Taken::Raw));
}

/// What its stream still reads when the memory is taken over is waited for by the first writer, on another stream.
fn late_consumer(taken: Taken) {
    taken_over(|handle, home, whose| {
        let (bytes, host, _) = cast(handle, 88);
        let q = QuantMatrix::from_host(handle, &host).unwrap();
        let slice = home.clone_htod(&bytes).unwrap();
        let mut copy = home.alloc_zeros::<u8>(bytes.len()).unwrap();
        home.synchronize().unwrap();
        handle.synchronize().unwrap();
        let stall = Stall::on_stream(home);
        home.memcpy_dtod(&slice, &mut copy).unwrap();
        let mut buffer = taken.over(slice);
        handle.dequantize_into(&q, &mut MatMut::new(&mut buffer, DType::F32, ROWS, COLS).unwrap()).unwrap();
        stall.release();
        let written = handle.read_bytes(&buffer.view()).unwrap();
        let copied = home.clone_dtoh(&copy).unwrap();
        home.synchronize().unwrap();
        assert!(copied == bytes, "{taken:?} of {whose} was written before its late reader read it");
        assert!(written != bytes, "{taken:?} of {whose} was not written");
    });
}

#[test]
fn a_slice_taken_over_is_written_behind_its_late_reader() {
    alone(|| late_consumer(Taken::Slice));
}

#[test]
fn an_address_taken_over_is_written_behind_its_late_reader() {
    alone(|| late_consumer(Taken::Raw));
}

/// Memory that was taken over and dropped goes back to its stream behind a late reader on another one.
fn dropped_under_a_late_reader(taken: Taken) {
    taken_over(|handle, home, whose| {
        let (bytes, want, mut target) = cast(handle, 89);
        let buffer = taken.over(home.clone_htod(&bytes).unwrap());
        home.synchronize().unwrap();
        handle.synchronize().unwrap();
        let stall = Stall::on(handle);
        cast_into(handle, &buffer, &mut target);
        drop(buffer);
        // The allocator gives the same memory again; zeros, so that nothing here waits for a copy.
        let rest = [(); 8].map(|()| home.alloc_zeros::<u8>(bytes.len()).unwrap());
        stall.release();
        let words = format!("{taken:?} of {whose}, freed under its late reader?");
        assert_same_bits(&target.to_host(handle).unwrap(), &want, &words);
        drop(rest);
    });
}

#[test]
fn a_slice_taken_over_is_freed_behind_its_late_reader() {
    alone(|| dropped_under_a_late_reader(Taken::Slice));
}

#[test]
fn an_address_taken_over_is_freed_behind_its_late_reader() {
    alone(|| dropped_under_a_late_reader(Taken::Raw));
}

// Streams whose first `Arc` is gone.

/// A cast by one handle of what another writes.
struct Race {
    buffer: DeviceBuffer,
    /// What is written: its values in plain numbers.
    source: QuantMatrix,
    target: QuantMatrix,
}

impl Race {
    /// All that both launch is loaded.
    fn new(writer: &Handle, reader: &Handle) -> Self {
        let buffer = writer.alloc(ROWS * COLS * 4).unwrap();
        let (_, host, _) = cast(writer, 91);
        let source = QuantMatrix::from_host(writer, &host).unwrap();
        let (_, _, target) = cast(reader, 92);
        writer.synchronize().unwrap();
        reader.synchronize().unwrap();
        Self { buffer, source, target }
    }

    fn write(&mut self, writer: &Handle) {
        let mut y = MatMut::new(&mut self.buffer, DType::F32, ROWS, COLS).unwrap();
        writer.dequantize_into(&self.source, &mut y).unwrap();
    }

    fn read(&mut self, reader: &Handle) {
        cast_into(reader, &self.buffer, &mut self.target);
    }

    /// What the cast gives when nothing races.
    fn settled(&mut self, reader: &Handle) -> HostQuantMatrix {
        self.read(reader);
        self.target.to_host(reader).unwrap()
    }
}

/// Two handles: on the legacy stream, whose first `Arc` went with a handle that is gone, and on a stream made after that.
///
/// (With its first `Arc` the stream was taken for gone, the next one for the context's only one, and no use left an event.)
fn after_the_first_arc(test: impl FnOnce([&Handle; 2])) {
    if handle().is_none() {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let [first, old] = [(); 2].map(|()| Handle::from_stream(context.default_stream()).unwrap());
    drop(first);
    let new = Handle::from_stream(context.new_stream().unwrap()).unwrap();
    test([&old, &new]);
}

#[test]
fn a_late_write_on_a_stream_whose_first_arc_is_gone() {
    alone(|| {
        after_the_first_arc(|[old, new]| {
            let mut race = Race::new(old, new);
            let before = race.settled(new);
            old.synchronize().unwrap();
            let stall = Stall::on(old);
            race.write(old);
            race.read(new);
            stall.release();
            let got = race.target.to_host(new).unwrap();
            old.synchronize().unwrap();
            let want = race.settled(new);
            assert!(want.codes() != before.codes(), "nothing was written");
            assert_same_bits(&got, &want, "the new stream's handle read before the old one's had written");
        });
    });
}

#[test]
fn a_late_read_before_a_stream_whose_first_arc_is_gone_writes() {
    alone(|| {
        after_the_first_arc(|[old, new]| {
            let mut race = Race::new(old, new);
            let want = race.settled(new);
            old.synchronize().unwrap();
            let stall = Stall::on(new);
            race.read(new);
            race.write(old);
            stall.release();
            let got = race.target.to_host(new).unwrap();
            old.synchronize().unwrap();
            assert!(race.settled(new).codes() != want.codes(), "nothing was written");
            assert_same_bits(&got, &want, "the old stream's handle wrote before the new one's had read");
        });
    });
}

/// The same for the free: memory of the old stream is dropped while the new one still reads it.
#[test]
fn memory_of_a_stream_whose_first_arc_is_gone_is_freed_behind_a_late_read() {
    alone(|| {
        after_the_first_arc(|[old, new]| {
            let mut race = Race::new(old, new);
            race.write(old);
            let want = race.settled(new);
            old.synchronize().unwrap();
            let Race { buffer, mut target, .. } = race;
            let stall = Stall::on(new);
            cast_into(new, &buffer, &mut target);
            drop(buffer);
            // The allocator gives the same memory again; zeros, so that nothing here waits for a copy.
            let rest = [(); 8].map(|()| old.stream().alloc_zeros::<u8>(ROWS * COLS * 4).unwrap());
            stall.release();
            assert_same_bits(&target.to_host(new).unwrap(), &want, "freed under its late reader");
            drop(rest);
        });
    });
}

// Handles and addresses that do not fit.

/// Refused when the matrix is made or when a call uses it; a call that takes it would break the context.
#[test]
fn addresses_that_no_element_can_have_are_refused() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let (rows, cols) = (4, 32);
        let mut buffer = handle.stream().alloc_zeros::<u8>(4096).unwrap();
        let mut target = handle.stream().alloc_zeros::<u8>(4096).unwrap();
        let sums = handle.stream().alloc_zeros::<f32>(rows * cols).unwrap();
        let acc = || MatRef::new(&sums, DType::F32, rows, cols).unwrap();
        let recipe = Recipe::new(ROWS_BY_ROWS.0);
        for (dtype, offset) in [(DType::Bf16, 1), (DType::Bf16, 17), (DType::F16, 3), (DType::F32, 1), (DType::F32, 6)]
        {
            let what = |kind| format!("a {kind} of {dtype}, {offset} bytes into an allocation");
            let x = MatRef::new(buffer.slice(offset..), dtype, rows, cols);
            misaligned(&what("MatRef"), x.and_then(|x| handle.quantize(&x, recipe)), dtype);
            let d = MatMut::new(&mut target, dtype, rows, cols).unwrap();
            let bias = VecRef::new(buffer.slice(offset..), dtype, cols);
            let biased = bias.and_then(|bias| handle.rescale_into(RescaleArgs::new(acc(), d).bias(bias)));
            misaligned(&what("VecRef"), biased, dtype);
            let mut view = buffer.slice_mut(offset..);
            let d = MatMut::new(&mut view, dtype, rows, cols);
            misaligned(&what("MatMut"), d.and_then(|d| handle.rescale_into(RescaleArgs::new(acc(), d))), dtype);
        }
        // One element into an allocation is where a view of a matrix may begin.
        let x = MatRef::new(buffer.slice(2..), DType::Bf16, rows, cols).unwrap();
        handle.quantize(&x, recipe).unwrap();
        handle.synchronize().unwrap();
    });
}

fn misaligned<T>(what: &str, result: Result<T, Error>, dtype: DType) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
    let required = matches!(error, Error::Alignment { required, .. } if required == dtype.bytes() as u64);
    assert!(required, "{what}: {error}");
}

/// The error says that the handle is another one, and what to do.
fn another_handle<T>(what: &str, result: Result<T, Error>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }) && text.contains("handle"), "{what}: {text}");
}

#[test]
fn a_plan_is_prepared_on_its_own_handle_only() {
    let Some(handle) = handle() else { return };
    let [own, other] = two_handles(handle);
    let Some(product) = RowProduct::new(&own, [16, 528, 400]) else { return };
    let RowProduct { ops, extras, case, mut plan, want } = product;
    another_handle("prepare of a prepared plan", plan.prepare(&other, &ops.b));
    let mut fresh = own.plan(plan.desc()).unwrap();
    another_handle("prepare of a new plan", fresh.prepare(&other, &ops.b));
    let mut output = Output::new(&own, &ops, &extras, &case);
    another_handle("execute", plan.execute(&other, output.args(&ops, &extras, &case)));
    assert!(execute(&own, &mut fresh, &ops, &extras, &case) == want, "its own handle still works");
}

#[test]
fn a_bf16_product_is_executed_on_its_own_handle_only() {
    let Some(handle) = handle() else { return };
    let [own, other] = two_handles(handle);
    let (m, n, k) = (16, 256, 128);
    let [a, b, mut d] = [m * k, n * k, m * n].map(|len| own.stream().alloc_zeros::<u8>(len * 2).unwrap());
    let mut product = Bf16Gemm::new(&own, m, n, k, 1).unwrap();
    let mut run = |handle: &Handle| {
        let (a, b) = (MatRef::new(&a, DType::Bf16, m, k).unwrap(), MatRef::new(&b, DType::Bf16, n, k).unwrap());
        product.execute(handle, &a, &b, &mut MatMut::new(&mut d, DType::Bf16, m, n).unwrap())
    };
    run(&own).unwrap();
    another_handle("Bf16Gemm::execute", run(&other));
    run(&own).unwrap();
    own.synchronize().unwrap();
}

// Streams of the host program.

#[test]
fn a_handle_leaves_its_context_in_single_stream_mode() {
    let Some(own) = handle() else { return };
    let shape = [16, 528, 400];
    let Some(want) = RowProduct::new(&own, shape).map(|product| product.want) else { return };
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream();
    let mode = |words: &str, wanted: bool| {
        assert!(context.is_event_tracking(), "{words}: event tracking was turned off");
        assert_eq!(context.is_in_multi_stream_mode(), wanted, "{words}: is_in_multi_stream_mode()");
    };
    mode("a new context", false);
    let first = Handle::from_stream(stream.clone()).unwrap();
    mode("one handle on the default stream", false);
    let second = Handle::from_stream(stream).unwrap();
    mode("two handles on the default stream", false);
    for handle in [&first, &second] {
        let product = RowProduct::new(handle, shape).unwrap();
        assert!(product.want == want, "a product on the default stream");
        mode("a product on the default stream", false);
    }
    drop(first);
    mode("one of two handles gone", false);
    drop(second);
    mode("both handles gone", false);
    // A program that has streams of its own stays in the other mode.
    let stream = context.new_stream().unwrap();
    let third = Handle::from_stream(stream.clone()).unwrap();
    mode("a handle on a new stream", true);
    drop(third);
    mode("the handle gone, the stream alive", true);
    drop(stream);
    mode("all streams gone", false);
}

#[test]
fn a_handle_on_the_per_thread_stream_is_refused() {
    if handle().is_none() {
        return;
    }
    let context = CudaContext::new(0).unwrap();
    let refused = Handle::from_stream(context.per_thread_stream());
    let error = refused.err().unwrap_or_else(|| panic!("a handle on CU_STREAM_PER_THREAD was made"));
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }), "{text}");
    assert!(
        text.to_lowercase().replace('_', "-").contains("per-thread") && text.contains("new_cuda_with_stream"),
        "{text}"
    );
    Handle::from_stream(context.new_stream().unwrap()).unwrap();
}

// Scratch memory.

/// The driver's pool of a context's GPU, where it has one.
fn default_pool(context: &CudaContext) -> Option<sys::CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let device = context.has_async_alloc().then(|| context.cu_device())?;
    // SAFETY: the device exists (a context is on it) and the driver writes one pointer.
    unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, device) }.result().unwrap();
    Some(pool)
}

/// Bytes of the driver's pool in use, and the most of them since the call before.
fn pool_used(handle: &Handle) -> Option<[u64; 2]> {
    use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
    let pool = default_pool(handle.stream().context())?;
    let read = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: the default pool lives as long as the device, and these attributes are one u64, which the driver writes.
        unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) }.result().unwrap();
        bytes
    };
    let used = [CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH].map(read);
    let mut zero = 0u64;
    // SAFETY: as above; the driver reads one u64, and zero is the value it accepts here.
    unsafe { sys::cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast()) }
        .result()
        .unwrap();
    Some(used)
}

/// Two layers of NVFP4 weights that are not kept, in turns: they share the handle's scratch memory, and neither forgets the
/// other's plan. (Plans once owned their scratch, and the cache held 512 MiB of it: one of the two.)
#[test]
fn alternating_layers_allocate_and_plan_nothing() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let (m, wide, long) = (32, 16384, 10240);
        let shapes = [(wide, long), (long, wide)];
        let zeros = |rows, cols| QuantMatrix::zeros(&handle, Scheme::Nvfp4, rows, cols).unwrap();
        let operands = shapes.map(|(n, k)| (zeros(m, k), zeros(n, k)));
        let mut outputs = shapes.map(|(n, _)| handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap());
        let mut times = Vec::new();
        let mut round = |times: &mut Vec<f64>| {
            for ((a, b), output) in operands.iter().zip(&mut outputs) {
                let d = MatMut::new(output, DType::Bf16, m, b.rows()).unwrap();
                let start = Instant::now();
                handle.scaled_gemm(GemmArgs::new(a, b, d).activation(Activation::Silu)).unwrap();
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        };
        round(&mut times);
        handle.synchronize().unwrap();
        let (cached, scratch) = (handle.cached_plans(), handle.scratch_bytes());
        pool_used(&handle);
        let before = pool_used(&handle);
        times.clear();
        (0..50).for_each(|_| round(&mut times));
        handle.synchronize().unwrap();
        let after = pool_used(&handle);
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!("{cached} plans cached, {scratch} bytes of scratch; host time of a call: median {median:.1} us");
        assert_eq!(after, before, "bytes of the pool in use, and the most of them, after and before fifty rounds");
        assert_eq!((cached, handle.cached_plans()), (2, 2), "plans in the cache, after one round and after fifty-one");
    });
}
