//! The only device: an H200, or one of the compute capability that `SCALED_GEMM_EMULATED` names.

use std::ffi::c_char;
use std::sync::LazyLock;

use super::codes::*;
use crate::memory::Memory;

/// Names the compute capability: `9.0`.
const VARIABLE: &str = "SCALED_GEMM_EMULATED";
/// Names the number of multiprocessors: with few of them blocks of small products have several tiles.
const OF_SMS: &str = "SCALED_GEMM_EMULATED_SMS";
const NAME: &str = "PTX emulator (no GPU)";
const UUID: [u8; 16] = *b"PTX emulator\0\0\0\0";
/// Bytes of shared memory of a block that the driver keeps for itself.
pub const RESERVED_SHARED: u32 = 1024;
/// Bytes of shared memory that a block has without asking for more.
pub const SHARED: u32 = 48 << 10;

/// What depends on the compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Compute capability, major * 10 + minor.
    pub capability: u32,
    /// Bytes of shared memory that a block may ask for.
    pub shared: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_of_sm: u32,
    /// Threads of a multiprocessor.
    pub threads_of_sm: u32,
    /// Blocks of a multiprocessor.
    pub blocks_of_sm: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

/// Those of an H200.
const MULTIPROCESSORS: u32 = 132;

impl Device {
    fn of(capability: u32) -> Self {
        let (shared, shared_of_sm, threads_of_sm, blocks_of_sm) = match capability {
            80 | 87 => (163, 164, 2048, 32),
            86 => (99, 100, 1536, 16),
            89 | 120..130 => (99, 100, 1536, 24),
            _ => (227, 228, 2048, 32),
        };
        Self {
            capability,
            shared: shared << 10,
            shared_of_sm: shared_of_sm << 10,
            threads_of_sm,
            blocks_of_sm,
            multiprocessors: MULTIPROCESSORS,
        }
    }

    /// Whether there are clusters of blocks.
    pub fn has_clusters(&self) -> bool {
        self.capability >= 90
    }

    /// Whether it takes PTX with this `.target`, such as `sm_90a`.
    pub fn takes(&self, target: &str) -> bool {
        let Some(digits) = target.strip_prefix("sm_") else { return true };
        let (number, suffix) = digits.split_at(digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
        let Ok(number) = number.parse::<u32>() else { return true };
        match suffix {
            "a" => number == self.capability,
            "f" => number / 10 == self.capability / 10 && number <= self.capability,
            _ => number <= self.capability,
        }
    }
}

/// `9.0`, as 90.
fn capability(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    ((7..=99).contains(&major) && minor <= 9).then_some(major * 10 + minor)
}

/// The device of this process.
pub static DEVICE: LazyLock<Device> = LazyLock::new(|| {
    let of = |variable| std::env::var(variable).ok().filter(|text| !text.is_empty());
    let named = of(VARIABLE).unwrap_or("9.0".into());
    let device = Device::of(capability(&named).unwrap_or_else(|| {
        eprintln!("PTX emulator: {VARIABLE}={named} is no compute capability such as 9.0; it is 9.0 then");
        90
    }));
    let Some(sms) = of(OF_SMS) else { return device };
    let multiprocessors = sms.parse().ok().filter(|sms| (1..=1024).contains(sms)).unwrap_or_else(|| {
        eprintln!("PTX emulator: {OF_SMS}={sms} is no number from 1 to 1024; it is {MULTIPROCESSORS} then");
        MULTIPROCESSORS
    });
    Device { multiprocessors, ..device }
});

/// There is device 0.
pub fn check_device(device: i32) -> Outcome {
    if device == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

/// `CUdevice_attribute`; what is not listed is 0. Numbers that no kernel depends on are those of an H200.
fn attribute(device: &Device, number: u32) -> u32 {
    match number {
        // Threads of a block, along each dimension, and blocks of a grid.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX as u32,
        6 | 7 => 65535,
        8 => SHARED,
        // Constant memory, warp, pitch, registers of a block, clock in kHz, alignment of textures, copies beside kernels.
        9 => 65536,
        10 => 32,
        11 => i32::MAX as u32,
        12 | 82 => 65536,
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => device.multiprocessors,
        // Mapped host memory, kernels beside one another, ECC.
        19 | 31 | 32 => 1,
        // Memory's clock and bus, L2, copy engines.
        36 => 3_201_000,
        37 => 6144,
        38 => 60 << 20,
        39 => device.threads_of_sm,
        40 => 3,
        41 => 1,
        75 => device.capability / 10,
        76 => device.capability % 10,
        // Priorities of streams, caches, managed memory.
        78..=80 => 1,
        81 => device.shared_of_sm,
        87 => 2,
        90 => 1,
        // Cooperative launches.
        95 => 1,
        97 => device.shared,
        106 => device.blocks_of_sm,
        111 => RESERVED_SHARED,
        // Pools, clusters, tensor maps.
        115 => 1,
        120 | 127 => device.has_clusters().into(),
        _ => 0,
    }
}

/// `cuDeviceGetCount`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(count, 1) })
}

/// `cuDeviceGet`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(check_device(ordinal).and_then(|()| unsafe { put(device, 0) }))
}

/// `cuDeviceGetAttribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, number: u32, device: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(check_device(device).and_then(|()| unsafe { put(value, attribute(&DEVICE, number) as i32) }))
}

/// `cuDeviceGetName`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(place: *mut c_char, room: i32, device: i32) -> Code {
    if device != 0 {
        return INVALID_DEVICE;
    }
    if place.is_null() || room < 1 {
        return INVALID_VALUE;
    }
    let bytes = NAME.bytes().take(room as usize - 1).chain([0]);
    for (at, byte) in bytes.enumerate() {
        // SAFETY: the caller says that there is so much room.
        unsafe { place.add(at).write(byte as c_char) };
    }
    SUCCESS
}

/// `cuDeviceGetUuid`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(check_device(device).and_then(|()| unsafe { put(uuid, UUID) }))
}

/// `cuDeviceGetUuid_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuDeviceGetUuid(uuid, device) }
}

/// `cuDeviceTotalMem_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(check_device(device).and_then(|()| unsafe { put(bytes, Memory::TOTAL) }))
}

/// `cuDeviceGetPCIBusId`: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(_place: *mut c_char, _room: i32, _device: i32) -> Code {
    NOT_SUPPORTED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        assert_eq!(["9.0", "12.0", "8.9"].map(capability), [Some(90), Some(120), Some(89)]);
        assert_eq!(["90", "9", "", "9.x", "6.1"].map(capability), [None; 5]);
        let device = Device::of(90);
        assert_eq!((attribute(&device, 75), attribute(&device, 76), attribute(&device, 97)), (9, 0, 232_448));
        assert_eq!([80, 86, 89, 120].map(|of| Device::of(of).shared >> 10), [163, 99, 99, 99]);
    }

    #[test]
    fn targets() {
        let (hopper, ada, blackwell) = (Device::of(90), Device::of(89), Device::of(103));
        for (target, takes) in [
            ("sm_80", [true, true, true]),
            ("sm_90", [true, false, true]),
            ("sm_90a", [true, false, false]),
            ("sm_100f", [false, false, true]),
            ("sm_100a", [false, false, false]),
        ] {
            assert_eq!([hopper, ada, blackwell].map(|device| device.takes(target)), takes, "{target}");
        }
    }
}
