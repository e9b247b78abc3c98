//! Which words may stand behind an opcode. A word that nobody looks at would be work done otherwise than it was asked for, so what is
//! not listed makes the instruction one that is not known.

use super::decode::kind;

const SCOPES: [&str; 8] = ["weak", "relaxed", "acquire", "release", "cta", "cluster", "gpu", "sys"];
const SPACES: [&str; 10] = [
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
    "const",
    "volatile",
];

/// Whether all words of an instruction are ones that the decoder looks at, or that change nothing here.
pub(super) fn known(base: &str, mods: &[&str]) -> bool {
    let of = mods.last().copied().unwrap_or("");
    let (f32, float) = (of == "f32", matches!(of, "f32" | "f64" | "f16" | "bf16" | "f16x2" | "bf16x2"));
    let types = mods.iter().filter(|word| kind(word).is_some()).count();
    // One type at the end, and before it some of these.
    let plain = |words: &[&str]| {
        types == 1 && kind(of).is_some() && mods[..mods.len() - 1].iter().all(|word| words.contains(word))
    };
    // A policy is an operand more, which is passed over.
    let hint = |word: &str| word.starts_with("L1::") || word.starts_with("L2::");
    let memory = |words: &[&str]| {
        types == 1
            && kind(of).is_some_and(|kind| kind != super::operation::Type::Pred)
            && mods[..mods.len() - 1]
                .iter()
                .all(|w| SCOPES.contains(w) || SPACES.contains(w) || hint(w) || words.contains(w))
    };
    let among = |words: &[&str]| mods.iter().all(|word| words.contains(word));
    match base {
        "mov" | "not" | "and" | "or" | "xor" | "shl" | "shr" | "popc" | "clz" | "brev" | "bfe" | "bfi" | "lop3"
        | "rem" | "selp" | "prmt" | "copysign" => plain(&[]),
        "bfind" => plain(&["shiftamt"]),
        "shf" => mods.len() == 3 && plain(&["l", "r", "wrap", "clamp"]),
        "add" if f32 => plain(&["rn", "rz", "ftz"]),
        "add" | "sub" | "mul" | "fma" | "mad" if f32 => plain(&["rn", "ftz"]),
        "add" | "sub" | "mul" | "fma" if float => plain(&["rn"]),
        "add" | "sub" => plain(&[]),
        "mul" | "mad" => mods.len() == 2 && plain(&["lo", "hi", "wide"]),
        "min" | "max" if f32 => plain(&["NaN", "ftz"]),
        "abs" | "neg" if f32 => plain(&["ftz"]),
        "min" | "max" | "abs" | "neg" => plain(&[]),
        "div" if f32 => mods.len() > 1 && plain(&["rn", "approx", "full", "ftz"]),
        "div" if float => plain(&["rn"]),
        "div" => plain(&[]),
        "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "tanh" => mods.len() > 1 && plain(&["rn", "approx", "ftz"]),
        "ld" | "ldu" => memory(&["nc", "v2", "v4", "ca", "cg", "cs", "lu", "cv"]),
        "st" => memory(&["async", "mbarrier::complete_tx::bytes", "v2", "v4", "wb", "cg", "cs", "wt"]),
        "atom" | "red" => {
            let ops = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
            let all = [ops.as_slice(), &["acq_rel", "noftz", "v2", "v4"]].concat();
            memory(&all) && mods.iter().filter(|word| ops.contains(word)).count() == 1 && !mods.iter().any(|w| hint(w))
        }
        "cvta" => plain(&["to", "global", "shared", "shared::cta", "shared::cluster", "local", "param", "const"]),
        "mapa" => matches!(mods, ["shared::cluster", "u32"]),
        // A comparison, a type, and perhaps a combination between.
        "setp" => {
            !matches!(of, "f16x2" | "bf16x2")
                && plain(&[
                    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
                    "geu", "num", "nan", "and", "or", "xor",
                ])
                && matches!(mods.len(), 2 | 3)
        }
        "set" => mods.len() == 3 && matches!(mods[1], "u32" | "s32" | "f32"),
        "cvt" => {
            let words = ["rn", "rz", "rp", "rm", "rni", "rzi", "rpi", "rmi", "sat", "satfinite"];
            let coded = mods.len() > 2 && matches!(mods[mods.len() - 2], "e4m3x2" | "e5m2x2" | "e2m1x2" | "ue8m0x2");
            mods.len() >= 2
                && mods[..mods.len() - 2].iter().all(|word| words.contains(word))
                && mods.contains(&"satfinite") == coded
        }
        "bar" | "barrier" => {
            let order = ["aligned", "acquire", "release", "relaxed", "cta"];
            let kinds = ["sync", "arrive", "red", "warp", "cluster", "wait", "and", "or", "popc", "pred", "u32"];
            mods.iter().all(|word| order.contains(word) || kinds.contains(word))
        }
        "shfl" => matches!(mods, ["sync", _, "b32"]),
        "vote" => matches!(mods, ["sync", "all" | "any" | "uni", "pred"] | ["sync", "ballot", "b32"]),
        "redux" => {
            matches!(
                mods,
                ["sync", "add" | "min" | "max", "u32" | "s32"] | ["sync", "and" | "or" | "xor", "b32" | "u32" | "s32"]
            )
        }
        "elect" => matches!(mods, ["sync"]),
        "mma" => matches!(mods, ["sync", "aligned", "m16n8k16", "row", "col", "f32", a, b, "f32"] if a == b),
        "wgmma" => matches!(
            mods,
            ["fence" | "commit_group" | "wait_group", "sync", "aligned"]
                | ["mma_async", "sync", "aligned", _, "f32", _, _]
        ),
        "ldmatrix" | "stmatrix" => {
            of == "b16"
                && mods.contains(&"m8n8")
                && among(&["sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"])
        }
        "cp" => {
            let bulk = mods.contains(&"bulk");
            let few = ["async", "ca", "cg", "shared", "shared::cta", "global", "commit_group", "wait_group"];
            let more = ["wait_all", "mbarrier", "arrive", "noinc", "b64"];
            let engine = ["bulk", "shared::cluster", "bulk_group", "read", "mbarrier::complete_tx::bytes"];
            let boxes = ["tensor", "2d", "tile", "multicast::cluster", "L2::cache_hint"];
            mods.first() == Some(&"async")
                && (bulk || !mods.contains(&"wait_all") || mods.len() == 2)
                && mods.iter().all(|word| {
                    few.contains(word)
                        || (!bulk && (more.contains(word) || hint(word)))
                        || (bulk && engine.contains(word))
                        || (bulk && mods.contains(&"tensor") && boxes.contains(word))
                })
        }
        "mbarrier" => mods.iter().all(|word| {
            let kinds = ["init", "inval", "arrive", "expect_tx", "try_wait", "test_wait", "parity"];
            kinds.contains(word)
                || matches!(
                    *word,
                    "shared"
                        | "shared::cta"
                        | "shared::cluster"
                        | "b64"
                        | "release"
                        | "acquire"
                        | "relaxed"
                        | "cta"
                        | "cluster"
                )
        }),
        // Hints, and those without words; the decoder knows no others.
        _ => true,
    }
}
