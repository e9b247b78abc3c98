//! Small kernels in PTX by hand: ways that part and join, what warps and blocks do together, copies that are not waited for, and
//! faults, which must be told.

use emulated_cuda::launch::{Launch, run};
use emulated_cuda::ptx::Module;

fn module(parameters: &str, registers: &str, body: &str) -> Module {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry kernel({parameters})\n{{\n.reg .pred %p<8>;\n.reg .b32 %r<32>;\n\
         .reg .b64 %rd<16>;\n.reg .f32 %f<8>;\n{registers}\n{body}\nret;\n}}\n"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(module.kernels[0].unknown().collect::<Vec<_>>(), Vec::<&str>::new());
    module
}

/// Runs `kernel(out)` of so many blocks and threads; gives what `out` holds.
fn words(module: &Module, blocks: u32, threads: u32, count: usize) -> Result<Vec<u32>, String> {
    launched(module, blocks, threads, 1, count)
}

fn launched(module: &Module, blocks: u32, threads: u32, cluster: u32, count: usize) -> Result<Vec<u32>, String> {
    let mut out = vec![0u32; count];
    let address = out.as_mut_ptr() as u64;
    let launch = Launch {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        cluster,
        cooperative: false,
        dynamic_shared: 256,
        parameters: address.to_le_bytes().to_vec(),
    };
    // SAFETY: these are the bytes of `out`, which nobody else touches.
    unsafe { run(module, 0, &launch, &[(address, 4 * count as u64)]) }?;
    Ok(out)
}

const OUT: &str = ".param .u64 out";
const PLACE: &str = "ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r4, %r2, %r3, %r1;\n\
                     mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;";

#[test]
fn ways_part_and_join() {
    // Collatz steps of each thread's number: loops of other lengths in one warp; then a sum over the warp.
    let body = format!(
        "{PLACE} add.s32 %r5, %r4, 1; mov.u32 %r6, 0;\n\
         $again: setp.eq.u32 %p1, %r5, 1; @%p1 bra $done;\n\
         and.b32 %r7, %r5, 1; setp.eq.u32 %p2, %r7, 0; @%p2 bra $even;\n\
         mad.lo.s32 %r5, %r5, 3, 1; bra.uni $next;\n\
         $even: shr.u32 %r5, %r5, 1;\n\
         $next: add.s32 %r6, %r6, 1; bra.uni $again;\n\
         $done: mov.u32 %r8, 16;\n\
         $sum: shfl.sync.bfly.b32 %r9, %r6, %r8, 31, -1; max.u32 %r6, %r6, %r9; shr.u32 %r8, %r8, 1; setp.ne.u32 %p3, %r8, 0; @%p3 bra $sum;\n\
         st.global.u32 [%rd3], %r6;"
    );
    let steps = |n: u32| {
        let (mut n, mut count) = (u64::from(n) + 1, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            count += 1;
        }
        count
    };
    let found = words(&module(OUT, "", &body), 2, 64, 128).unwrap();
    for (n, &value) in found.iter().enumerate() {
        let warp = n as u32 / 32 * 32;
        assert_eq!(value, (warp..warp + 32).map(steps).max().unwrap(), "thread {n}");
    }
}

#[test]
fn blocks_meet_and_clusters_read_one_another() {
    // Each thread leaves its number, and reads that of the last thread of the block beside it.
    let body = format!(
        "{PLACE} mov.u32 %r5, box; mul.lo.s32 %r6, %r1, 4; add.s32 %r7, %r5, %r6; st.shared.u32 [%r7], %r4;\n\
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n\
         mov.u32 %r8, %cluster_ctarank; xor.b32 %r9, %r8, 1; sub.s32 %r10, %r3, %r1; add.s32 %r10, %r10, -1; mul.lo.s32 %r10, %r10, 4;\n\
         add.s32 %r10, %r10, %r5; mapa.shared::cluster.u32 %r11, %r10, %r9; ld.shared::cluster.u32 %r12, [%r11];\n\
         barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; st.global.u32 [%rd3], %r12;"
    );
    let module = module(OUT, ".shared .align 4 .b8 box[384];", &body);
    let found = launched(&module, 4, 96, 2, 4 * 96).unwrap();
    for (n, &value) in found.iter().enumerate() {
        let (block, thread) = (n as u32 / 96, n as u32 % 96);
        assert_eq!(value, (block ^ 1) * 96 + 95 - thread);
    }
}

/// Which one is told with the lane's number or without it, among those that are named.
#[test]
fn one_lane_of_a_warp_is_elected() {
    let body = format!(
        "{PLACE} elect.sync _|%p1, -1; selp.u32 %r5, 100, 0, %p1; and.b32 %r8, %r1, 31; setp.lt.u32 %p2, %r8, 3; @%p2 bra $end;\n\
         elect.sync %r6|%p3, 0xFFFFFFF8; selp.u32 %r7, 1000, 0, %p3; add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r7;\n\
         $end: st.global.u32 [%rd3], %r5;"
    );
    let found = words(&module(OUT, "", &body), 1, 64, 64).unwrap();
    for (n, &value) in found.iter().enumerate() {
        let expected = [100, 0, 0, 1003].get(n % 32).copied().unwrap_or(3);
        assert_eq!(value, expected, "thread {n}");
    }
}

#[test]
fn copies_come_when_they_are_waited_for() {
    let copy = |wait: &str| {
        let commit = if wait.contains("all") { "" } else { "cp.async.commit_group;" };
        let body = format!(
            "{PLACE} st.global.u32 [%rd3], %r4; mov.u32 %r5, box; mad.lo.s32 %r6, %r1, 4, %r5;\n\
             cp.async.ca.shared.global [%r6], [%rd3], 4; {commit} {wait}\n\
             ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd3], %r7;"
        );
        words(&module(OUT, ".shared .align 16 .b8 box[256];", &body), 1, 64, 64).unwrap()
    };
    assert_eq!(copy("cp.async.wait_group 0;"), (0..64).collect::<Vec<u32>>());
    // All are those that no group has, too.
    assert_eq!(copy("cp.async.wait_all;"), (0..64).collect::<Vec<u32>>());
    // What is there before a copy was waited for is no number.
    assert_eq!(copy("cp.async.wait_group 1;"), vec![u32::MAX; 64]);
}

#[test]
fn products_of_a_warp_are_those_of_matrices() {
    // A: row r is r + 1 in its first column, 0 else; B: column c is c + 1 in its first row. D = C + (r + 1) (c + 1).
    let body = format!(
        "{PLACE} shr.u32 %r5, %r1, 2; and.b32 %r6, %r1, 3; setp.eq.u32 %p1, %r6, 0; add.s32 %r7, %r5, 1; cvt.rn.f32.u32 %f1, %r7; add.s32 %r8, %r5, 9;\n\
         cvt.rn.f32.u32 %f2, %r8; mov.f32 %f3, 0f00000000; cvt.rn.bf16x2.f32 %r9, %f3, %f1; cvt.rn.bf16x2.f32 %r10, %f3, %f2;\n\
         selp.b32 %r11, %r9, 0, %p1; selp.b32 %r12, %r10, 0, %p1; mov.u32 %r13, 0; mov.f32 %f4, 0f3F000000;\n\
         mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f5, %f6, %f7, %f1}}, {{%r11, %r12, %r13, %r13}}, {{%r11, %r13}}, {{%f4, %f4, %f4, %f4}};\n\
         mul.wide.u32 %rd4, %r1, 16; add.s64 %rd5, %rd1, %rd4; st.global.v4.f32 [%rd5], {{%f5, %f6, %f7, %f1}};"
    );
    let found = words(&module(OUT, "", &body), 1, 32, 128).unwrap();
    for lane in 0..32 {
        for n in 0..4 {
            let (row, column) = (lane / 4 + n / 2 * 8, lane % 4 * 2 + n % 2);
            let value = f32::from_bits(found[4 * lane + n]);
            assert_eq!(value, 0.5 + ((row + 1) * (column + 1)) as f32, "row {row}, column {column}");
        }
    }
}

#[test]
fn functions_that_call_functions_leave_their_callers_memory_alone() {
    // outer(p) adds up inner(p[i]) for both numbers that the kernel keeps in memory of its own; inner(x) = x * x + 1, odd threads alone.
    let text = ".version 8.0 .target sm_90 .address_size 64\n\
        .func (.param .b32 given) inner(.param .b32 inner_x) { .reg .b32 %r<4>; ld.param.u32 %r1, [inner_x]; mad.lo.s32 %r2, %r1, %r1, 1; st.param.b32 [given], %r2; ret; }\n\
        .func (.param .b32 given) outer(.param .b64 outer_p) { .reg .b32 %r<8>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [outer_p];\n\
        ld.u32 %r1, [%rd1]; { .param .b32 a; st.param.b32 [a], %r1; .param .b32 r; call.uni (r), inner, (a); ld.param.b32 %r2, [r]; }\n\
        ld.u32 %r3, [%rd1+4]; { .param .b32 a; st.param.b32 [a], %r3; .param .b32 r; call.uni (r), inner, (a); ld.param.b32 %r4, [r]; }\n\
        add.s32 %r5, %r2, %r4; st.param.b32 [given], %r5; ret; }\n\
        .visible .entry kernel(.param .u64 out) { .local .align 8 .b8 own[8]; .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>;\n\
        ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; mov.u64 %rd4, own; cvta.local.u64 %rd5, %rd4;\n\
        add.s32 %r2, %r1, 10; st.local.u32 [%rd4], %r1; st.local.u32 [%rd4+4], %r2; and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; mov.u32 %r4, 7; @%p1 bra $end;\n\
        { .param .b64 a; st.param.b64 [a], %rd5; .param .b32 r; call.uni (r), outer, (a); ld.param.b32 %r4, [r]; }\n\
        $end: ld.local.u32 %r5, [%rd4]; ld.local.u32 %r6, [%rd4+4]; add.s32 %r4, %r4, %r5; add.s32 %r4, %r4, %r6; st.global.u32 [%rd3], %r4; ret; }\n";
    let found = words(&Module::parse(text).unwrap(), 1, 64, 64).unwrap();
    for (n, &value) in found.iter().enumerate() {
        let n = n as u32;
        let given = if n.is_multiple_of(2) { 7 } else { n * n + 1 + (n + 10) * (n + 10) + 1 };
        assert_eq!(value, given + n + n + 10, "thread {n}");
    }
}

#[test]
fn faults_are_told() {
    let fault = |body: &str| {
        words(&module(OUT, ".shared .align 4 .b8 box[64];", &format!("{PLACE} {body}")), 1, 64, 64).unwrap_err()
    };
    let beyond = fault("st.global.u32 [%rd3+4], %r4;");
    assert!(
        beyond.contains("kernel, block [0, 0, 0]")
            && beyond.contains("4 bytes at 0x")
            && beyond.contains("no allocation has"),
        "{beyond}"
    );
    let crooked = fault("st.global.u32 [%rd3+1], %r4;");
    assert!(crooked.contains("is no multiple of 4"), "{crooked}");
    // 64 static bytes and 256 dynamic ones.
    let shared = fault("mov.u32 %r5, box; st.shared.u32 [%r5+320], %r4;");
    assert!(shared.contains("4 bytes at shared address"), "{shared}");
    let parted = fault(
        "setp.lt.u32 %p1, %r1, 7; @%p1 bra $end; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; $end: bar.warp.sync -1;",
    );
    assert!(parted.contains("wait for others of their warp"), "{parted}");
    let alone = fault("setp.lt.u32 %p1, %r1, 32; @%p1 bra $end; bar.sync 1, 64; $end: bar.sync 0;");
    assert!(alone.contains("nothing goes on") && alone.contains("barrier 1"), "{alone}");
    let trap = fault("trap;");
    assert!(trap.contains("trap"), "{trap}");
    let unknown = Module::parse(
        ".version 8.0 .target sm_90 .address_size 64 .entry kernel() { .reg .b32 %r<2>; frob.b32 %r1, 7; ret; }",
    )
    .unwrap();
    let launch = Launch {
        grid: [1; 3],
        block: [1; 3],
        cluster: 1,
        cooperative: false,
        dynamic_shared: 0,
        parameters: Vec::new(),
    };
    // SAFETY: it has no memory.
    let unknown = unsafe { run(&unknown, 0, &launch, &[]) }.unwrap_err();
    assert!(unknown.contains("frob.b32") && unknown.contains("not known here"), "{unknown}");
}

#[test]
fn what_is_not_known_is_no_other_instruction() {
    let count = |instruction: &str| {
        let text = format!(
            ".version 8.0 .target sm_90 .address_size 64 .entry kernel() {{ .reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<8>; \
             .reg .f32 %f<32>; .reg .b64 %rd<8>; {instruction} ret; }}"
        );
        Module::parse(&text).unwrap_or_else(|error| panic!("{instruction}: {error}")).kernels[0].unknown().count()
    };
    for instruction in [
        "add.cc.u32 %r1, %r2, %r3;",
        "add.sat.s32 %r1, %r2, %r3;",
        "add.rm.f32 %f1, %f2, %f3;",
        "add.sat.f32 %f1, %f2, %f3;",
        "mul.rp.f32 %f1, %f2, %f3;",
        "mul.rz.f32 %f1, %f2, %f3;",
        "fma.rn.sat.f32 %f1, %f2, %f3, %f4;",
        "fma.rn.relu.f16x2 %r1, %r2, %r3, %r4;",
        "fma.rn.f32.bf16 %f1, %rs1, %rs2, %f3;",
        "div.rz.f32 %f1, %f2, %f3;",
        "sqrt.rm.f32 %f1, %f2;",
        "max.xorsign.abs.f32 %f1, %f2, %f3;",
        "mul24.lo.u32 %r1, %r2, %r3;",
        "mad.lo.cc.u32 %r1, %r2, %r3, %r4;",
        "mul.hi.s64 %rd1, %rd2, %rd3;",
        "setp.eq.ftz.f32 %p1, %f1, %f2;",
        "setp.lt.f16x2 %p1|%p2, %r1, %r2;",
        "set.lt.and.u32.s32 %r1, %r2, %r3, %p1;",
        "cvt.rn.satfinite.f16x2.f32 %r1, %f1, %f2;",
        "cvt.rn.ftz.f32.f64 %f1, %rd1;",
        "cvt.rn.relu.bf16.f32 %rs1, %f1;",
        "ld.global.v2.u32 %r1, [%rd1];",
        "atom.global.add.L2::cache_hint.u64 %rd1, [%rd2], %rd3, %rd4;",
        "red.async.relaxed.cluster.global.add.u32 [%rd1], %r1;",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3+8];",
        "mbarrier.arrive.shared::cta.b64 %rd1, [%r1], %r2;",
        "mbarrier.arrive.noComplete.shared::cta.b64 %rd1, [%r1], %r2;",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f1, %f2, %f3, %f4};",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%r3];",
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%f1, %f2}, %rd1, %rd2, %p1, 1, 1;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r1], [%r2], %r3, [%r4];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1], %r3, [%r4], %rs1;",
        "cp.async.ca.shared.global [%r1], [%rd1], 12;",
        "bar.red.xor.pred %p1, 0, %p2;",
        "shfl.idx.b32 %r1, %r2, %r3, 31;",
        "vote.all %p1, %p2;",
        "redux.sync.max.NaN.f32 %f1, %f2, -1;",
        "cvt.rs.bf16x2.f32 %r1, %f1, %f2, %r2;",
        "mov.b32 {}, %r1;",
    ] {
        assert_eq!(count(instruction), 1, "{instruction}");
    }
    for instruction in [
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];",
        "mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r1], %r2;",
        "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16, %r2;",
        "ld.global.L2::cache_hint.v2.u32 {%r1, %r2}, [%rd1], %rd2;",
        "ld.global.nc.L1::no_allocate.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r3, %r4, %r5};",
    ] {
        assert_eq!(count(instruction), 0, "{instruction}");
    }
}

#[test]
fn results_are_those_of_the_documentation() {
    // The lower and the upper word of %rd4, which holds %r9 unless the body writes it.
    let result = |body: &str| {
        let body = format!(
            "ld.param.u64 %rd1, [out]; mov.u64 %rd4, 0; mov.u32 %r9, 0; mov.b64 %rd2, 0x8000000000000000; {body}\n\
             cvt.u64.u32 %rd5, %r9; or.b64 %rd4, %rd4, %rd5; st.global.u64 [%rd1], %rd4;"
        );
        let found = words(&module(OUT, ".reg .b16 %rs<8>;", &body), 1, 1, 2).unwrap();
        u64::from(found[0]) | u64::from(found[1]) << 32
    };
    for (body, expected) in [
        ("mov.b16 %rs1, 0xFFFF; mov.b16 %rs2, 3; mul.wide.s16 %r9, %rs1, %rs2;", 0xFFFF_FFFD),
        ("mov.b16 %rs1, 0xFFFF; mov.b16 %rs2, 3; mul.wide.u16 %r9, %rs1, %rs2;", 0x2_FFFD),
        ("mov.b16 %rs1, 0xFFFE; mov.b16 %rs2, 3; mov.u32 %r1, 1; mad.wide.s16 %r9, %rs1, %rs2, %r1;", 0xFFFF_FFFB),
        // A register of 16 bits may have come with a sign.
        ("mov.u32 %r1, -2; cvt.s16.s32 %rs1, %r1; mov.b16 %rs2, 2; mul.wide.u16 %r9, %rs1, %rs2;", 0x1_FFFC),
        ("mov.u32 %r1, -2; cvt.s16.s32 %rs1, %r1; cvt.u32.u16 %r9, %rs1;", 0xFFFE),
        ("mov.u32 %r1, -2; cvt.s16.s32 %rs1, %r1; mov.b32 %r9, {%rs1, %rs1};", 0xFFFE_FFFE),
        // What is wider than the type is filled with its sign.
        ("mov.u32 %r1, 0x1F0; cvt.s8.s32 %r9, %r1;", 0xFFFF_FFF0),
        ("mov.f32 %f1, 0fC0000000; cvt.rzi.s16.f32 %r9, %f1;", 0xFFFF_FFFE),
        ("mov.f32 %f1, 0fC0000000; cvt.rzi.s32.f32 %rd4, %f1;", 0xFFFF_FFFF_FFFF_FFFE),
        ("mov.u32 %r1, -300; cvt.sat.s8.s32 %r9, %r1;", 0xFFFF_FF80),
        ("mov.u32 %r1, -300; cvt.sat.u8.s32 %r9, %r1;", 0),
        // To between 0 and 1.
        ("mov.u32 %r1, 7; cvt.rn.sat.f32.s32 %r9, %r1;", 0x3F80_0000),
        // The quotient wraps.
        ("mov.u32 %r1, 0x80000000; mov.u32 %r2, -1; div.s32 %r9, %r1, %r2;", 0x8000_0000),
        ("mov.b64 %rd3, -1; div.s64 %rd4, %rd2, %rd3;", 0x8000_0000_0000_0000),
        ("mov.u32 %r1, 0x80000000; mov.u32 %r2, -1; rem.s32 %r9, %r1, %r2;", 0),
        // 2^127 has a reciprocal that is subnormal, which .ftz makes zero; one of a subnormal number is infinite then.
        ("mov.f32 %f1, 0fFF000000; rcp.approx.f32 %r9, %f1;", 0x8040_0000),
        ("mov.f32 %f1, 0fFF000000; rcp.approx.ftz.f32 %r9, %f1;", 0x8000_0000),
        ("mov.f32 %f1, 0f00700000; rcp.approx.ftz.f32 %r9, %f1;", 0x7F80_0000),
        ("mov.f32 %f1, 0f00700000; add.ftz.f32 %r9, %f1, %f1;", 0),
        ("mov.f32 %f1, 0f00700000; add.f32 %r9, %f1, %f1;", 0x00E0_0000),
        // Both predicates of a comparison, with what is not a number.
        (
            "mov.f32 %f1, 0f7FC00000; setp.ne.f32 %p1, %f1, %f1; setp.neu.f32 %p2, %f1, %f1; setp.lt.and.f32 %p3|%p4, %f1, %f1, %p2;\n\
             selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; selp.b32 %r3, 4, 0, %p3; selp.b32 %r4, 8, 0, %p4;\n\
             add.u32 %r9, %r1, %r2; add.u32 %r9, %r9, %r3; add.u32 %r9, %r9, %r4;",
            10,
        ),
        ("mov.u32 %r1, 0x80; bfe.s32 %r9, %r1, 4, 4;", 0xFFFF_FFF8),
        ("mov.u32 %r1, 0x80000000; bfe.s32 %r9, %r1, 28, 8;", 0xFFFF_FFF8),
        ("mov.u32 %r1, 0x80FF; mov.u32 %r2, 0x11223344; prmt.b32 %r9, %r1, %r2, 0x9704;", 0xFF11_FF44),
        ("mov.b64 %rd3, 3; mul.hi.u64 %rd4, %rd2, %rd3;", 1),
        ("mov.u32 %r1, 0x80000000; mul.wide.s32 %rd4, %r1, 2;", 0xFFFF_FFFF_0000_0000),
        ("mov.u32 %r1, 1; mov.u32 %r2, 2; shf.l.clamp.b32 %r9, %r1, %r2, 40;", 1),
        ("mov.u32 %r1, 1; mov.u32 %r2, 2; shf.r.wrap.b32 %r9, %r1, %r2, 33;", 0),
    ] {
        assert_eq!(result(body), expected, "{body}");
    }
    let inexact = module(OUT, "", "mov.u64 %rd2, 0x1000000000000001; cvt.rz.f32.u64 %f1, %rd2;");
    assert!(words(&inexact, 1, 1, 2).unwrap_err().contains("is not known here"));
}

#[test]
fn no_address_wraps_around() {
    let fault =
        |body: &str| words(&module(OUT, ".local .align 8 .b8 own[16];", &format!("{PLACE} {body}")), 1, 32, 32).err();
    for body in [
        // The last bytes that there are, first of all that is touched: their end is address 0.
        "mov.b64 %rd4, -4; ld.global.u32 %r5, [%rd4];",
        "mov.b64 %rd4, -8; ld.global.v2.u32 {%r5, %r6}, [%rd4];",
        "mov.b64 %rd4, 0; ld.global.u32 %r5, [%rd4+-4];",
        "mov.b64 %rd4, -8; ld.local.u64 %rd5, [%rd4];",
        "mov.b64 %rd4, -8; ld.param.u64 %rd5, [%rd4];",
        "mov.u32 %r5, -4; ld.shared.u32 %r6, [%r5];",
        // Of no block of the cluster.
        "mov.u32 %r5, 1024; mov.u32 %r6, 255; mapa.shared::cluster.u32 %r7, %r5, %r6; ld.shared::cluster.u32 %r8, [%r7];",
        "mov.u32 %r5, 1024; mov.u32 %r6, -1; mapa.shared::cluster.u32 %r7, %r5, %r6; ld.shared::cluster.u32 %r8, [%r7];",
        "mov.u64 %rd4, own; ld.local.u32 %r5, [%rd4+2];",
        "ld.param.u32 %r5, [out+2];",
        // Four numbers at a multiple of one.
        "red.global.add.v4.f32 [%rd1+4], {%f1, %f2, %f3, %f4};",
        "bar.sync 16;",
    ] {
        assert!(fault(body).is_some(), "{body}");
    }
    assert_eq!(fault("red.global.add.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};"), None);
    // Another block's memory, by instructions that know their own alone.
    for (access, fine) in [
        ("ld.shared::cluster.u32 %r8, [%r7];", true),
        ("ld.shared.u32 %r8, [%r7];", false),
        ("cp.async.ca.shared.global [%r7], [%rd1], 4; cp.async.wait_all;", false),
    ] {
        let body = format!(
            "{PLACE} mov.u32 %r5, 1024; mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1; mapa.shared::cluster.u32 %r7, %r5, %r6; {access}"
        );
        assert_eq!(launched(&module(OUT, "", &body), 2, 32, 2, 64).is_ok(), fine, "{access}");
    }
}

#[test]
fn barriers_wait_for_those_that_are_left() {
    // Lanes that wait for others of their warp go on once those have ended.
    let ended = format!(
        "{PLACE} setp.gt.u32 %p1, %r1, 40; @%p1 bra $end; bar.sync 0; st.global.u32 [%rd3], %r4; $end: mov.u32 %r5, 0;"
    );
    let expected: Vec<u32> = (0..64).map(|n| if n > 40 { 0 } else { n }).collect();
    assert_eq!(words(&module(OUT, "", &ended), 1, 64, 64).unwrap(), expected);
    // A warp that arrives twice: its second arrival is the next turn's.
    let twice = format!(
        "{PLACE} setp.gt.u32 %p1, %r1, 31; @%p1 bra $second; bar.sync 1, 64; bar.sync 1, 64; bra.uni $end;\n\
         $second: bar.arrive 1, 64; bar.arrive 1, 64; $end: st.global.u32 [%rd3], %r4;"
    );
    assert_eq!(words(&module(OUT, "", &twice), 1, 64, 64).unwrap(), (0..64).collect::<Vec<_>>());
    // What a barrier counted is what those that met there said, though a warp arrives again in the same turn.
    let counted = format!(
        "{PLACE} setp.gt.u32 %p1, %r1, 31; setp.gt.u32 %p2, %r1, 29; @%p1 bra $second; barrier.red.popc.aligned.u32 %r5, 1, 64, %p2; bra.uni $end;\n\
         $second: barrier.red.popc.aligned.u32 %r5, 1, 64, %p2; $end: st.global.u32 [%rd3], %r5;"
    );
    assert_eq!(words(&module(OUT, "", &counted), 1, 64, 64).unwrap(), vec![34; 64]);
    // One warp of the cluster arrives and ends: it counts once, and the others wait for the one that sleeps.
    let cluster = format!(
        "{PLACE} mov.u32 %r5, box; mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p1, %r6, 0; setp.lt.u32 %p2, %r1, 32; and.pred %p3, %p1, %p2; @%p3 bra $gone;\n\
         @%p1 bra $wait; @%p2 bra $wait; mov.u32 %r7, 0; $slow: add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 20000; @%p4 bra $slow; st.shared.u32 [%r5], %r7;\n\
         $wait: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 %r8, 1; mapa.shared::cluster.u32 %r9, %r5, %r8;\n\
         ld.shared::cluster.u32 %r10, [%r9]; st.global.u32 [%rd3], %r10; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; bra.uni $end;\n\
         $gone: barrier.cluster.arrive.release.aligned; $end: mov.u32 %r11, 0;"
    );
    let found = launched(&module(OUT, ".shared .align 4 .b8 box[16];", &cluster), 2, 64, 2, 128).unwrap();
    let expected: Vec<u32> = (0..128).map(|n| if n < 32 { 0 } else { 20000 }).collect();
    assert_eq!(found, expected);
}

#[test]
fn lanes_that_spin_let_others_of_their_warp_run() {
    // Lane 0 waits for a word that lane 1 writes behind the loop.
    let memory = format!(
        "{PLACE} setp.ne.u32 %p1, %r1, 0; @%p1 bra $other; $spin: ld.volatile.global.u32 %r5, [%rd1+4]; setp.eq.u32 %p2, %r5, 0; @%p2 bra $spin;\n\
         st.global.u32 [%rd1], %r5; bra.uni $end; $other: mov.u32 %r6, 9; st.global.u32 [%rd3], %r6; $end: mov.u32 %r7, 0;"
    );
    assert_eq!(words(&module(OUT, "", &memory), 1, 2, 2).unwrap(), [9, 9]);
    // Lane 0 waits for a barrier at which lane 1 arrives after long work.
    let barrier = format!(
        "{PLACE} mov.u32 %r5, box; setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared::cta.b64 [%r5], 1; bar.warp.sync -1; @%p1 bra $other;\n\
         $spin: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0; @!%p2 bra $spin; st.global.u32 [%rd1], %r3; bra.uni $end;\n\
         $other: mov.u32 %r6, 0; $work: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 30000; @%p3 bra $work; mbarrier.arrive.shared::cta.b64 %rd4, [%r5];\n\
         st.global.u32 [%rd3], %r6; $end: mov.u32 %r7, 0;"
    );
    assert_eq!(words(&module(OUT, ".shared .align 8 .b8 box[8];", &barrier), 1, 2, 2).unwrap(), [2, 30000]);
}

#[test]
fn names_are_those_of_their_braces() {
    // The same labels and registers twice, as assembly of C++ has them.
    let body = format!(
        "{PLACE} mov.u32 %r5, 0; .reg .b32 t<3>; mov.u32 t1, 100;\n\
         {{ .reg .b32 t<3>; mov.u32 t1, 0; again: add.u32 t1, t1, 1; setp.lt.u32 %p1, t1, 3; @%p1 bra again; @!%p1 bra done; add.u32 %r5, %r5, 50; done: add.u32 %r5, %r5, t1; }}\n\
         {{ .reg .b32 t<3>; mov.u32 t1, 0; again: add.u32 t1, t1, 1; setp.lt.u32 %p1, t1, 5; @%p1 bra again; {{ @!%p1 bra done; }} add.u32 %r5, %r5, 50; done: add.u32 %r5, %r5, t1; }}\n\
         add.u32 %r5, %r5, t1; st.global.u32 [%rd3], %r5;"
    );
    assert_eq!(words(&module(OUT, "", &body), 1, 32, 32).unwrap(), vec![108; 32]);
}
