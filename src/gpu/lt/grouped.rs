//! The library's own grouped products: what each version lacks, or is known to do wrong, on the GPU at hand.
//!
//! *Notes* are NVIDIA's release notes, *documentation* cuBLAS's own, *reports* public issue threads, *observed* is ours: on an H200 with 13.10.0. No other version, and no other GPU, was tried.

use super::quirks::{GROUPED, Version};

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version::new(major, minor, patch)
}

/// Behind the last version that is known.
const OPEN: Version = Version::from_raw(u32::MAX);

/// The first version with grouped products, and the first that has them for sm_90 (reports: TransformerEngine's gate).
const OFFERED: Version = GROUPED;
const OFFERED_ON_HOPPER: Version = v(13, 4, 0);

/// A row of what they do wrong. Not here: 13.2 leaves gradients of groups without rows unwritten (notes 13.3), which are products that nobody asks of it.
struct Fault {
    /// Half-open version ranges: from, until.
    ranges: &'static [(Version, Version)],
    on: fn((u32, u32)) -> bool,
    effect: &'static str,
}

const HOPPER: (u32, u32) = (9, 0);

static FAULTS: &[Fault] = &[
    Fault {
        ranges: &[(OFFERED_ON_HOPPER, v(13, 5, 0))],
        on: |cc| cc == HOPPER,
        effect: "have no algorithm for a scale for each group (TransformerEngine 3181)",
    },
    Fault {
        ranges: &[(OFFERED_ON_HOPPER, v(13, 6, 1))],
        on: |cc| cc == HOPPER,
        effect: "hang where streams share a workspace (notes 13.6.1)",
    },
    Fault {
        ranges: &[(v(13, 4, 0), v(13, 4, 2)), (v(13, 5, 0), v(13, 6, 2)), (v(13, 7, 0), v(13, 8, 0))],
        on: |_| true,
        // Ours lies on the device. None of these was tried, and others that have it do.
        effect: "are wrong with alpha on the host (notes 13.4.2, 13.6.2, 13.8)",
    },
    Fault {
        ranges: &[(v(13, 7, 0), OPEN)],
        on: |(major, _)| major >= 10,
        effect: "are wrong at times (notes 13.7, open at 13.8)",
    },
];

/// Whether some version has them for this GPU.
fn is_served(cc: (u32, u32)) -> bool {
    cc == HOPPER || cc.0 == 10 || cc == (11, 0)
}

/// The versions whose grouped products can be asked for on this GPU, in words; `None` where no version has them.
pub(crate) fn grouped_versions(cc: (u32, u32)) -> Option<String> {
    let offered = if cc == HOPPER { OFFERED_ON_HOPPER } else { OFFERED };
    let mut faults: Vec<_> = FAULTS.iter().filter(|fault| (fault.on)(cc)).flat_map(|fault| fault.ranges).collect();
    faults.sort();
    // What lies between one fault's end and the next one's beginning.
    let (mut from, mut ranges) = (offered, Vec::new());
    for &&(begins, ends) in faults.iter().chain([&&(OPEN, OPEN)]) {
        if from < begins {
            let until = if begins == OPEN { "on".to_string() } else { format!("to before {begins}") };
            ranges.push(format!("from {from} {until}"));
        }
        from = from.max(ends);
    }
    (is_served(cc) && !ranges.is_empty()).then(|| ranges.join(", "))
}

/// Why this version's own grouped products cannot be asked for on this GPU; `None` where they can.
pub(crate) fn grouped_refusal(version: Version, cc: (u32, u32)) -> Option<String> {
    let library = format!("cuBLASLt {version}");
    if version < OFFERED {
        return Some(format!("{library} has no grouped products, which came with {OFFERED}"));
    }
    let (major, minor) = cc;
    if !is_served(cc) {
        return Some(format!(
            "cuBLASLt has grouped products for sm_90, sm_10x and sm_110 alone (documentation), and this GPU is sm_{major}{minor}"
        ));
    }
    if cc == HOPPER && version < OFFERED_ON_HOPPER {
        return Some(format!("{library} has no grouped products for sm_90, which came with {OFFERED_ON_HOPPER}"));
    }
    let is_in = |&(from, until): &(Version, Version)| (from..until).contains(&version);
    let faults = FAULTS.iter().filter(|fault| fault.ranges.iter().any(is_in) && (fault.on)(cc));
    let known = faults.map(|fault| fault.effect).collect::<Vec<_>>().join("; ");
    (!known.is_empty()).then(|| {
        format!("{library} has experimental grouped products, which on this GPU {known}: this crate does not call them")
    })
}

/// Why gradients of groups are not the library's.
pub(crate) const NO_GRADIENTS: &str = "cuBLASLt's own products of groups are not called for gradients: they are experimental there, this crate has tried none for sums along the rows of groups, and of 1x128 scales they want those of each group by itself, where ours lie by columns across all rows";

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(version: Version, cc: (u32, u32), words: &[&str], not: &[&str]) {
        let text = grouped_refusal(version, cc).unwrap_or_default();
        assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
        assert!(!not.iter().any(|word| text.contains(word)), "{text} has one of {not:?}");
    }

    #[test]
    fn a_version_without_them_says_when_they_came() {
        for cc in [(8, 0), HOPPER, (10, 0), (12, 0)] {
            let text = grouped_refusal(v(13, 1, 0), cc).unwrap();
            assert_eq!(text, "cuBLASLt 13.1.0 has no grouped products, which came with 13.2.0");
        }
        says(v(13, 3, 2), HOPPER, &["cuBLASLt 13.3.2 has no grouped products for sm_90", "13.4.0"], &["experimental"]);
    }

    #[test]
    fn a_gpu_that_no_version_serves_is_named() {
        for cc in [(8, 0), (8, 9), (12, 0), (12, 1)] {
            let name = format!("this GPU is sm_{}{}", cc.0, cc.1);
            says(v(13, 8, 0), cc, &["sm_90, sm_10x and sm_110 alone", &name], &["hang", "wrong"]);
        }
    }

    /// And those alone are refused nothing, at both ends of each range.
    #[test]
    fn versions_in_words_are_those_that_are_not_refused() {
        let blackwell = "from 13.2.0 to before 13.4.0, from 13.4.2 to before 13.5.0, from 13.6.2 to before 13.7.0";
        for (cc, words) in [
            (HOPPER, Some("from 13.6.2 to before 13.7.0, from 13.8.0 on")),
            ((10, 0), Some(blackwell)),
            ((10, 3), Some(blackwell)),
            ((11, 0), Some(blackwell)),
            ((8, 9), None),
            ((12, 0), None),
        ] {
            assert_eq!(grouped_versions(cc).as_deref(), words, "{cc:?}");
            for (minor, patch) in (0..12).flat_map(|minor| (0..4).map(move |patch| (minor, patch))) {
                let version = v(13, minor, patch);
                let is_in = |range: &str| {
                    let mut numbers = range.split(' ').filter(|word| word.starts_with("13")).map(|word| {
                        let of: Vec<u32> = word.split('.').map(|number| number.parse().unwrap()).collect();
                        v(of[0], of[1], of[2])
                    });
                    version >= numbers.next().unwrap() && numbers.next().is_none_or(|until| version < until)
                };
                let said = words.is_some_and(|words| words.split(", ").any(is_in));
                assert_eq!(said, grouped_refusal(version, cc).is_none(), "{version} on {cc:?}");
            }
        }
    }

    /// What is mended in patches of several versions is wrong between them.
    #[test]
    fn faults_are_those_of_version_and_gpu() {
        let (hang, alpha, one_scale) = ("hang", "alpha on the host", "a scale for each group");
        says(v(13, 4, 0), HOPPER, &[hang, alpha, one_scale], &[]);
        says(v(13, 4, 2), HOPPER, &[hang, one_scale], &[alpha]);
        says(v(13, 5, 1), HOPPER, &[hang, alpha], &[one_scale]);
        says(v(13, 6, 1), HOPPER, &[alpha], &[hang]);
        says(v(13, 7, 0), HOPPER, &[alpha], &[hang, "at times"]);
        for mended in [v(13, 6, 2), v(13, 8, 0), v(13, 10, 0)] {
            assert_eq!(grouped_refusal(mended, HOPPER), None);
        }
        for early in [v(13, 2, 0), v(13, 3, 0)] {
            assert_eq!(grouped_refusal(early, (10, 0)), None);
        }
        // From 13.7 on no version is called there.
        for late in [v(13, 7, 0), v(13, 10, 0)] {
            says(late, (10, 0), &["at times"], &[]);
            says(late, (11, 0), &["at times"], &[]);
        }
        assert_eq!(grouped_refusal(v(13, 4, 2), (10, 3)), None);
        says(v(13, 8, 0), (10, 0), &["at times", "open at 13.8"], &[alpha]);
        for (fault, (from, until)) in
            FAULTS.iter().flat_map(|fault| fault.ranges.iter().map(move |range| (fault, range)))
        {
            assert!(from < until && *from >= OFFERED, "{}", fault.effect);
        }
    }
}
