//! Weights of experts without rows are never read: their codes lie at addresses that hold no memory, so that a single read of them is a fault, and their scales are NaN. By every kernel of ours that
//! multiplies groups: the bits of the used expert alone. And groups without rows take no time.
//!
//! Each of these tests runs in a process of its own (`hazards::alone`): a fault ends all work of its process on the GPU.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "common/sm90.rs"]
mod sm90;

use std::ops::Range;

use common::gemm::*;
use common::*;
use guarded::Arena;
use hazards::alone;
use scaled_gemm::cudarc::driver::{result, sys};
use scaled_gemm::{
    DType, DeviceBuffer, Fp8Format, FusedGemmArgs, GroupedGemmArgs, GroupedRows, Handle, HostQuantMatrix, KernelFamily,
    MatMut, MatRef, QuantMatrix, Scheme, Sm90Config, Timing,
};
use sm90::*;

const EXPERTS: usize = 256;
/// Columns of D: whole tiles of every configuration, 64, 128, 160 and 192 wide, so that none reaches into the next expert's matrix.
const N: usize = 1920;
const K: usize = 1152;
/// Rows of the used expert, and where they begin in an A of [`ROWS_OF_A`].
const ROWS: usize = 130;
const START: usize = 4;
const ROWS_OF_A: usize = 140;
/// Rows of a slot.
const SLOT: usize = 4;

/// Where groups lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Places {
    /// All that have no rows begin where the used one does, or where it ends.
    Starts,
    Slots,
}

/// Where the used expert's rows lie, and how many they are.
fn taken(places: Places, used: usize) -> (usize, usize) {
    match places {
        Places::Starts => (START, ROWS),
        Places::Slots => (SLOT * used, SLOT - 1),
    }
}

fn rows_of_a(places: Places) -> usize {
    match places {
        Places::Starts => ROWS_OF_A,
        Places::Slots => SLOT * EXPERTS,
    }
}

/// Starts and counts of groups on the device.
struct Groups {
    count: usize,
    slots: bool,
    starts: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Groups {
    fn new(handle: &Handle, slots: bool, taken: &[(usize, usize)]) -> Self {
        let numbers = |of: fn(&(usize, usize)) -> usize| taken.iter().map(|x| of(x) as i64).collect::<Vec<_>>();
        let [starts, counts] = [numbers(|x| x.0), numbers(|x| x.1)].map(|of| handle.upload(&of).unwrap());
        Self { count: taken.len(), slots, starts, counts }
    }

    fn rows(&self) -> GroupedRows<'_> {
        match self.slots {
            true => GroupedRows::Masked { slot_rows: SLOT, counts: self.counts.view() },
            false => GroupedRows::Contiguous { starts: self.starts.view(), counts: self.counts.view() },
        }
    }
}

/// How many of these addresses, one in each megabyte, hold memory that a kernel could read: an allocation of this process on the GPU, or on the host where the GPU reads that, too.
fn held(handle: &Handle, range: &Range<u64>) -> usize {
    let pageable = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
    let maps = match handle.stream().context().attribute(pageable).unwrap() {
        0 => String::new(),
        _ => std::fs::read_to_string("/proc/self/maps").unwrap_or_default(),
    };
    let of_host: Vec<Range<u64>> = maps
        .lines()
        .filter_map(|line| {
            let (place, rest) = line.split_once(' ')?;
            let (from, to) = place.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            rest.starts_with('r').then_some(number(from)?..number(to)?)
        })
        .collect();
    let on_gpu = |address: u64| {
        let (mut base, mut size) = (0, 0);
        // SAFETY: both are written, and nothing is read of the address itself.
        unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, address) }.result().is_ok()
    };
    range.clone().step_by(1 << 20).filter(|at| on_gpu(*at) || of_host.iter().any(|host| host.contains(at))).count()
}

/// B of all experts, of which this one alone is in memory: the first or the last, so that D is in no expert's place and the others' places hold the least. Which it is, and where its codes are.
fn with_idle_experts(handle: &Handle, one: &HostQuantMatrix, d: u64) -> (QuantMatrix, usize, u64) {
    let (scheme, n, k) = (one.scheme(), one.rows(), one.cols());
    let bytes = one.codes().len();
    handle.stream().context().bind_to_thread().unwrap();
    // An allocation of its own, which no pool has put beside others.
    // SAFETY: as many bytes as are copied.
    let codes = unsafe {
        let codes = result::malloc_sync(bytes).unwrap();
        result::memcpy_htod_sync(codes, one.codes()).unwrap();
        codes
    };
    let ends = [0, EXPERTS - 1].into_iter().filter_map(|used| {
        let base = codes.checked_sub((used * bytes) as u64)?;
        let all = base..base.checked_add((EXPERTS * bytes) as u64)?;
        let idle = if used == 0 { codes + bytes as u64..all.end } else { base..codes };
        (!all.contains(&d)).then(|| (held(handle, &idle), used, base, idle))
    });
    let (held, used, base, idle) = ends.min_by_key(|end| end.0).expect("D lies above or below the used expert");
    let of = ((idle.end - idle.start) >> 20) as usize;
    println!("{scheme}: {held} of {of} megabytes of idle experts hold something else");
    assert!(2 * held < of, "{held} of {of} megabytes of idle experts are memory: reads of them would pass");
    // SAFETY: the used expert's codes are there until all work that reads them is done. The others are not, and that nobody reads them is what these tests are for: who does ends this process with a fault.
    let of_all = unsafe { DeviceBuffer::from_raw(handle.stream(), base, EXPERTS * bytes, ()) }.unwrap();
    // One scale of all is that of the used one; else the others are NaN. Of 1x128 groups all experts' rows lie side by side, for one block of columns after the other.
    let columns = if matches!(scheme, Scheme::Fp8Group1x128(_)) { k.div_ceil(128) } else { 1 };
    let part = |len: fn(Scheme, usize, usize) -> usize, own: &[u8]| {
        let [each, before, all] = [n, used * n, EXPERTS * n].map(|rows| len(scheme, rows, k) / columns);
        assert_eq!(each * columns, own.len());
        let mut bytes = vec![0xFFu8; all * columns];
        let at = if all == each { 0 } else { before };
        for (to, own) in bytes.chunks_mut(all.max(1)).zip(own.chunks(each.max(1))) {
            to[at..at + each].copy_from_slice(own);
        }
        (!bytes.is_empty()).then(|| handle.upload(&bytes).unwrap())
    };
    let scales = part(|scheme, rows, k| scheme.scale_len(rows, k) * 4, &bytes_of(DType::F32, one.scales()));
    let block_scales = part(Scheme::block_scale_len, one.block_scales());
    (QuantMatrix::from_parts(scheme, EXPERTS * n, k, of_all, scales, block_scales).unwrap(), used, codes)
}

/// Where the result goes.
enum Target {
    Numbers(DeviceBuffer),
    Codes(QuantMatrix),
}

/// One call of groups into D.
type Call<'a> = &'a dyn Fn(&QuantMatrix, &Groups, &mut Target) -> scaled_gemm::Result<()>;

/// The call with all experts, of which one has rows, gives what it gives with that one alone; D is codes, or numbers of this type.
fn check(handle: &Handle, words: &str, one: &HostQuantMatrix, places: Places, out: Option<DType>, call: Call<'_>) {
    let m = rows_of_a(places);
    let run = |b: Option<&QuantMatrix>, arena: &mut Arena, used: usize| {
        let (mut d, written) = match out {
            Some(out) => {
                let d = arena.place(handle, &vec![0xFF; m * N * out.bytes()], 16);
                (Target::Numbers(d), vec![arena.last()])
            }
            None => {
                let (d, written) = arena.target(handle, VEC, [m, N]);
                (Target::Codes(d), written)
            }
        };
        let before = arena.ready(handle);
        let taken = taken(places, used);
        match b {
            // Those before it begin where it does, those behind it where it ends.
            Some(b) => {
                let behind = (taken.0 + taken.1).next_multiple_of(4);
                let of = |g: usize| if g == used { taken } else { (if g < used { taken.0 } else { behind }, 0) };
                let groups: Vec<_> = (0..EXPERTS).map(of).collect();
                call(b, &Groups::new(handle, places == Places::Slots, &groups), &mut d).unwrap();
            }
            None => {
                let b = QuantMatrix::from_host(handle, one).unwrap();
                call(&b, &Groups::new(handle, false, &[taken]), &mut d).unwrap();
            }
        }
        let all = arena.read_behind(handle, &before, &written, words);
        guarded::gathered_bytes(&all, &written)
    };
    let mut arena = Arena::new(handle, m * N * 4 + (2 << 20));
    let (b, used, codes) = with_idle_experts(handle, one, arena.address());
    let found = run(Some(&b), &mut arena, used);
    drop(b);
    handle.synchronize().unwrap();
    // SAFETY: it came from `malloc_sync`, and nothing that is enqueued reads it any more.
    unsafe { result::free_sync(codes) }.unwrap();
    let want = run(None, &mut Arena::new(handle, m * N * 4 + (2 << 20)), used);
    assert!(want.iter().filter(|byte| **byte != 0xFF).count() > N, "{words}: the used expert stores something");
    assert!(found == want, "{words}: not the bits of the used expert alone");
}

fn numbers(d: &mut Target, out: DType, m: usize) -> MatMut<'_> {
    match d {
        Target::Numbers(d) => MatMut::new(d, out, m, N).unwrap(),
        Target::Codes(_) => unreachable!(),
    }
}

/// In each configuration that has kernels for such groups.
fn check_sm90(handle: &Handle, seed: u64, pairs: &[(Scheme, Scheme)]) {
    let mut rng = Noise::new(seed);
    for pair in pairs {
        let one = quantized(&tiled(&mut rng, N, K), pair.1);
        for places in [Places::Starts, Places::Slots] {
            let m = rows_of_a(places);
            let a = QuantMatrix::from_host(handle, &quantized(&tiled(&mut rng, m, K), pair.0)).unwrap();
            for config in of_groups_with(*pair) {
                let call: Call<'_> = &|b, groups, d| {
                    let d = numbers(d, DType::Bf16, m);
                    handle.grouped_gemm(GroupedGemmArgs::new(&a, b, groups.count, groups.rows(), d).config(config))
                };
                check(handle, &format!("{pair:?}, {config}, {places:?}"), &one, places, Some(DType::Bf16), call);
            }
        }
    }
}

#[test]
fn sm90_reads_no_weights_of_idle_experts() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        check_sm90(&handle, 801, &[(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR]);
    });
}

/// The same of rows in E5M2, as gradients are, and of matrices in it.
#[test]
fn sm90_of_e5m2_reads_no_weights_of_idle_experts() {
    alone(|| {
        let Some(handle) = handle_with(KernelFamily::Sm90E5m2) else { return };
        use Scheme::{Fp8Group1x128 as Vec128, Fp8Group128x128 as Blk, Fp8Row as Row, Fp8Tensor as Tensor};
        let e5m2 = Fp8Format::E5M2;
        let pairs = [
            (Vec128(e5m2), BLK),
            (Vec128(e5m2), VEC),
            (Row(e5m2), Row(E4M3)),
            (Tensor(e5m2), Tensor(E4M3)),
            (VEC, Blk(e5m2)),
            (VEC, Vec128(e5m2)),
            (Tensor(E4M3), Tensor(e5m2)),
        ];
        check_sm90(&handle, 804, &pairs);
    });
}

#[test]
fn products_with_a_pass_read_no_weights_of_idle_experts() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut rng = Noise::new(802);
        let [single, both] = [N, 2 * N].map(|rows| quantized(&tiled(&mut rng, rows, K), BLK));
        for places in [Places::Starts, Places::Slots] {
            let m = rows_of_a(places);
            let a = QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, m, K), VEC)).unwrap();
            for config in [Sm90Config::Tile256x128, Sm90Config::Tile128x128, Sm90Config::Tile64x128] {
                let codes: Call<'_> = &|b, groups, d| {
                    let Target::Codes(d) = d else { unreachable!() };
                    let args = FusedGemmArgs::quantized(&a, b, d).groups(groups.count, groups.rows());
                    handle.fused_gemm(args.config(config))
                };
                check(&handle, &format!("codes, {config}, {places:?}"), &single, places, None, codes);
                if config == Sm90Config::Tile256x128 {
                    continue;
                }
                for out in [None, Some(DType::Bf16)] {
                    let swiglu: Call<'_> = &|b, groups, d| {
                        let args = match d {
                            Target::Codes(d) => FusedGemmArgs::swiglu(&a, b, d),
                            d => FusedGemmArgs::swiglu(&a, b, numbers(d, DType::Bf16, m)),
                        };
                        handle.fused_gemm(args.groups(groups.count, groups.rows()).config(config))
                    };
                    check(&handle, &format!("SwiGLU to {out:?}, {config}, {places:?}"), &both, places, out, swiglu);
                }
            }
        }
    });
}

#[test]
fn small_m_reads_no_weights_of_idle_experts() {
    alone(|| {
        let Some(handle) = handle_with(KernelFamily::SmallMGroups) else { return };
        let mut rng = Noise::new(803);
        for scheme in
            [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Mxfp8(E4M3), BLK, ROW_PAIR.1, TENSOR_PAIR.1]
        {
            let [single, both] = [N, 2 * N].map(|rows| quantized(&tiled(&mut rng, rows, K), scheme));
            for places in [Places::Starts, Places::Slots] {
                let m = rows_of_a(places);
                let x = upload_strided(
                    &handle,
                    &tiled(&mut rng, m, K).mapv(|v| round_to(DType::Bf16, v)),
                    DType::Bf16,
                    K,
                    0,
                );
                // What slots change is where rows lie.
                for usual in [8, 16, 32, 128].into_iter().filter(|usual| places == Places::Starts || *usual < 32) {
                    let plain: Call<'_> = &|b, groups, d| {
                        let (a, d) = (MatRef::new(&x, DType::Bf16, m, K)?, numbers(d, DType::Bf16, m));
                        let args = GroupedGemmArgs::weight_only(a, b, groups.count, groups.rows(), d);
                        handle.grouped_gemm(args.expected_rows(usual))
                    };
                    let gated: Call<'_> = &|b, groups, d| {
                        let (a, d) = (MatRef::new(&x, DType::Bf16, m, K)?, numbers(d, DType::Bf16, m));
                        let args = FusedGemmArgs::swiglu_weight_only(a, b, d).groups(groups.count, groups.rows());
                        handle.fused_gemm(args.expected_rows(usual))
                    };
                    let words = |what: &str| format!("{what} of {scheme}, {usual} rows, {places:?}");
                    check(&handle, &words("a product"), &single, places, Some(DType::Bf16), plain);
                    check(&handle, &words("SwiGLU"), &both, places, Some(DType::Bf16), gated);
                }
            }
        }
    });
}

/// One expert of 256 takes about as long as that expert alone, and a small part of what all take.
#[test]
#[ignore = "compares times: on a GPU of its own"]
fn groups_without_rows_take_no_time() {
    let (Some(handle), n, k) = (hopper(), 2048, 2048) else { return };
    let m = SLOT * EXPERTS;
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, k).unwrap();
    let x = handle.alloc(m * k * 2).unwrap();
    let a = zeros(VEC, m);
    // Of all experts one, all, and one that is alone.
    let slot = SLOT as i64;
    let one = (0..EXPERTS).map(|g| if g == EXPERTS / 3 { slot } else { 0 }).collect();
    let counts = [one, vec![slot; EXPERTS], vec![slot]].map(|counts| handle.upload(&counts).unwrap());
    let mut d = [m, m, m].map(|rows| handle.alloc(rows * n * 2).unwrap());
    for (what, scheme) in [("sm90", BLK), ("small-m", Scheme::Nvfp4Row)] {
        let b = [EXPERTS, EXPERTS, 1].map(|experts| zeros(scheme, experts * n));
        // Of the one alone only the first rows of A.
        let a_of_one = zeros(VEC, SLOT);
        let times = Timing::PAUSES.with_calls(8).in_turns(&handle, 3, |who, _| {
            let (groups, rows) = if who == 2 { (1, SLOT) } else { (EXPERTS, m) };
            let places = GroupedRows::Masked { slot_rows: SLOT, counts: counts[who].view() };
            let d = MatMut::new(&mut d[who], DType::Bf16, rows, n)?;
            let args = match what {
                "sm90" => {
                    let a = if who == 2 { &a_of_one } else { &a };
                    // The same tiles for one group as for many.
                    GroupedGemmArgs::new(a, &b[who], groups, places, d).config(Sm90Config::Tile64x128)
                }
                _ => GroupedGemmArgs::weight_only(MatRef::new(&x, DType::Bf16, rows, k)?, &b[who], groups, places, d),
            };
            handle.grouped_gemm(args)
        });
        let [one, all, alone] = times.unwrap().iter().map(|times| times.median()).collect::<Vec<_>>()[..] else {
            unreachable!()
        };
        println!("{what}: one expert of {EXPERTS} {one:.2} us, all {all:.2}, one alone {alone:.2}");
        assert!(one <= 2.0 * alone && 8.0 * one <= all, "{what}: {one:.2} us; all {all:.2}, one alone {alone:.2}");
    }
}
