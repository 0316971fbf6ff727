//! Memory.

use candle_core::{test_device, Device};
use candle_wasi_gpu::{
    backend, BootstrapParams, BufferUsage, GpuBackend, GpuError, Limits, Result,
};

use crate::support::{assert_invalid, open, Calls, Random};

fn numbered(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 + 11) as u8).collect()
}

fn any_offset_and_length(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    for size in [1, 3, 4, 17, 64] {
        let buffer = gpu.empty(size)?;
        let mut want = vec![0; size as usize];
        assert_eq!(gpu.buffer_read(buffer, 0, size as u32)?, want);
        for offset in 0..=size {
            for length in 0..=(size - offset).min(9) {
                let data = &numbered(64)[(offset + length) as usize % 40..][..length as usize];
                gpu.buffer_write(buffer, offset, data)?;
                want[offset as usize..][..data.len()].copy_from_slice(data);
                let got = gpu.buffer_read(buffer, offset, length as u32)?;
                assert_eq!(got, data, "{length} at {offset} of {size}");
            }
        }
        assert_eq!(gpu.buffer_read(buffer, 0, size as u32)?, want, "of {size}");
        gpu.buffer_destroy(buffer)?;
    }
    Ok(())
}
test_device!(any_offset_and_length);

/// Short writes and longer ones may go different ways.
fn writes_of_many_lengths(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let data = numbered(700);
    let mut want = vec![0; 800];
    let buffer = gpu.empty(800)?;
    for length in (236..246).chain([1, 64, 255, 256, 257, 700]) {
        for offset in [0, 1, 2, 3, 4, 97] {
            gpu.buffer_write(buffer, offset, &data[..length])?;
            want[offset as usize..][..length].copy_from_slice(&data[..length]);
            let got = gpu.buffer_read(buffer, 0, 800)?;
            assert_eq!(got, want, "{length} at {offset}");
        }
    }
    Ok(())
}
test_device!(writes_of_many_lengths);

fn copies_at_any_place(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let source = numbered(40);
    let src = gpu.bytes(&source)?;
    let dst = gpu.empty(41)?;
    let mut want = vec![0; 41];
    for from in 0..6 {
        for to in 0..6 {
            for size in [0, 1, 2, 3, 4, 5, 8, 13, 30] {
                gpu.buffer_copy(src, from, dst, to, size)?;
                let (from, to, size) = (from as usize, to as usize, size as usize);
                want[to..to + size].copy_from_slice(&source[from..from + size]);
                let got = gpu.buffer_read(dst, 0, 41)?;
                assert_eq!(got, want, "{size} from {from} to {to}");
            }
        }
    }
    Ok(())
}
test_device!(copies_at_any_place);

fn overlapping_copies_go_through_a_third(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let mut want = numbered(700);
    let buffer = gpu.bytes(&want)?;
    for (from, to, size) in [
        (0, 1, 600),
        (5, 0, 600),
        (4, 8, 300),
        (8, 4, 301),
        (0, 0, 700),
        (3, 350, 350),
        (350, 3, 333),
    ] {
        gpu.buffer_copy(buffer, from, buffer, to, size)?;
        let (from, to, size) = (from as usize, to as usize, size as usize);
        want.copy_within(from..from + size, to);
        assert_eq!(
            gpu.buffer_read(buffer, 0, 700)?,
            want,
            "{size} from {from} to {to}"
        );
    }
    Ok(())
}
test_device!(overlapping_copies_go_through_a_third);

fn large_buffers(device: &Device) -> Result<()> {
    let gpu = backend(
        device,
        Limits {
            memory: 1 << 30,
            buffers: 2,
        },
    )?;
    // More than one chunk of a read, and more workgroups than a dimension has.
    let size = (80 << 20) + 3;
    let buffer = gpu.empty(size)?;
    let data = numbered(size as usize - 1);
    gpu.buffer_write(buffer, 1, &data)?;
    let got = gpu.buffer_read(buffer, 0, size as u32)?;
    assert_eq!(got[0], 0);
    assert!(got[1..] == data);
    let copy = gpu.empty(size)?;
    gpu.buffer_copy(buffer, 1, copy, 0, size - 1)?;
    let got = gpu.buffer_read(copy, 0, size as u32)?;
    assert!(got[..data.len()] == data);
    assert_eq!(got[data.len()], 0);
    Ok(())
}
test_device!(large_buffers);

fn ranges_are_checked(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let (a, b) = (gpu.empty(10)?, gpu.empty(20)?);
    let most = u64::MAX;
    for (offset, size) in [
        (0, 11),
        (10, 1),
        (11, 0),
        (most, 1),
        (most, 0),
        (most - 3, 4),
    ] {
        let offset_text = offset.to_string();
        let words: &[&str] = &["10 bytes", &offset_text];
        let data = vec![1; size as usize];
        assert_invalid(gpu.buffer_write(a, offset, &data), words);
        assert_invalid(gpu.buffer_read(a, offset, size as u32), words);
        assert_invalid(gpu.begin_read(a, offset, size as u32).map(|_| ()), words);
        assert_invalid(gpu.buffer_copy(a, offset, b, 0, size), words);
        assert_invalid(gpu.buffer_copy(b, 0, a, offset, size), words);
    }
    for size in [most, most - 1, 1 << 63, 21] {
        assert_invalid(gpu.buffer_copy(b, 1, b, 0, size), &["20 bytes"]);
    }
    assert_invalid(gpu.buffer_read(a, 0, u32::MAX), &["4294967295"]);
    assert!(gpu.buffer_read(a, 10, 0)?.is_empty());
    assert_eq!(gpu.buffer_read(a, 0, 10)?, [0; 10]);
    Ok(())
}
test_device!(ranges_are_checked);

fn names_are_never_used_again(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let other = open(device)?;
    let params = BootstrapParams {
        n_samples: 0,
        seed: 1,
        max_index: 1,
    };
    let stale = |gpu: &dyn GpuBackend, id: u32| {
        let good = gpu.empty(4).unwrap();
        let refused = [
            gpu.buffer_write(id, 0, &[1]),
            gpu.buffer_read(id, 0, 1).map(|_| ()),
            gpu.begin_read(id, 0, 1).map(|_| ()),
            gpu.buffer_copy(id, 0, good, 0, 1),
            gpu.buffer_copy(good, 0, id, 0, 1),
            gpu.kernel_bootstrap_sample(params, id),
            gpu.buffer_destroy(id),
        ];
        let is_stale = |answer: &Result<()>| *answer == Err(GpuError::InvalidBuffer);
        assert!(refused.iter().all(is_stale), "{id}: {refused:?}");
    };
    let mut last = 0;
    for _ in 0..5 {
        let buffer = gpu.empty(4)?;
        assert!(buffer > last);
        last = buffer;
        gpu.buffer_destroy(buffer)?;
        stale(&*gpu, buffer);
    }
    for id in [0, 1000, u32::MAX] {
        stale(&*gpu, id);
    }
    // Another guest's names mean other buffers.
    let mine = gpu.bytes(&[7])?;
    assert_eq!(other.buffer_read(mine, 0, 1), Err(GpuError::InvalidBuffer));
    Ok(())
}
test_device!(names_are_never_used_again);

fn quotas(device: &Device) -> Result<()> {
    let limits = Limits {
        memory: 1000,
        buffers: 3,
    };
    let gpu = backend(device, limits)?;
    assert_eq!(gpu.get_device_info().total_memory, 1000);
    assert_invalid(gpu.empty(0), &["0 bytes"]);
    for size in [1001, 1 << 40, 1 << 63, u64::MAX] {
        assert_eq!(gpu.empty(size), Err(GpuError::OutOfMemory), "{size}");
    }
    let large = gpu.empty(999)?;
    gpu.empty(1)?;
    assert_eq!(gpu.empty(1), Err(GpuError::OutOfMemory));
    gpu.buffer_destroy(large)?;
    gpu.empty(500)?;
    gpu.empty(1)?;
    // Room, but a fourth one.
    assert_eq!(gpu.empty(1), Err(GpuError::OutOfMemory));
    let none = backend(
        device,
        Limits {
            memory: 0,
            buffers: 1,
        },
    );
    assert_invalid(none.map(|_| ()), &["0 bytes"]);
    // More than any device has in one buffer.
    let limits = Limits {
        memory: u64::MAX,
        buffers: 3,
    };
    let gpu = backend(device, limits)?;
    assert_invalid(gpu.empty(u64::MAX), &["one buffer"]);
    Ok(())
}
test_device!(quotas);

/// Another guest's bytes must not be found in memory that the device hands out again.
fn new_buffers_are_zero(device: &Device) -> Result<()> {
    let (gpu, other) = (open(device)?, open(device)?);
    let sizes = [1, 5, 100, 4097, 100_000];
    for _ in 0..3 {
        for size in sizes {
            let buffer = gpu.bytes(&vec![0xff; size])?;
            gpu.sync();
            gpu.buffer_destroy(buffer)?;
        }
        for size in sizes {
            let buffer = other.empty(size as u64)?;
            let got = other.buffer_read(buffer, 0, size as u32)?;
            assert!(got.iter().all(|byte| *byte == 0), "{size}");
            other.buffer_destroy(buffer)?;
        }
    }
    Ok(())
}
test_device!(new_buffers_are_zero);

fn reads_are_of_their_moment(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let buffer = gpu.bytes(&[1, 2, 3, 4, 5])?;
    let first = gpu.begin_read(buffer, 1, 3)?;
    gpu.buffer_write(buffer, 0, &[9; 5])?;
    let second = gpu.begin_read(buffer, 0, 5)?;
    drop(gpu.begin_read(buffer, 0, 5)?);
    gpu.buffer_destroy(buffer)?;
    drop(gpu);
    assert_eq!(pollster::block_on(second)?, [9; 5]);
    assert_eq!(pollster::block_on(first)?, [2, 3, 4]);
    Ok(())
}
test_device!(reads_are_of_their_moment);

/// `usage` is a hint.
fn usage_forbids_nothing(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    for usage in [
        BufferUsage::empty(),
        BufferUsage::UNIFORM,
        BufferUsage::all(),
    ] {
        let (a, b) = (gpu.buffer_create(8, usage)?, gpu.buffer_create(8, usage)?);
        gpu.buffer_write(a, 0, &[1; 8])?;
        gpu.buffer_copy(a, 0, b, 4, 4)?;
        assert_eq!(gpu.buffer_read(b, 0, 8)?, [0, 0, 0, 0, 1, 1, 1, 1]);
    }
    let info = gpu.get_device_info();
    assert!(!info.name.is_empty());
    assert_eq!(info.backend == "cpu", matches!(device, Device::Cpu));
    Ok(())
}
test_device!(usage_forbids_nothing);

fn threads_may_share_a_backend(device: &Device) -> Result<()> {
    let gpu = open(device)?;
    let gpu = &*gpu;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let mut random = Random::new(thread.into());
                for _ in 0..10 {
                    let data = vec![thread; random.below(100) as usize + 1];
                    let buffer = gpu.bytes(&data).unwrap();
                    assert_eq!(gpu.buffer_read(buffer, 0, data.len() as u32), Ok(data));
                    gpu.buffer_destroy(buffer).unwrap();
                }
            });
        }
    });
    Ok(())
}
test_device!(threads_may_share_a_backend);

#[cfg(feature = "webgpu")]
#[test]
fn lost_devices_are_unavailable_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0).expect("an adapter");
    let gpu = open(&device)?;
    let buffer = gpu.bytes(&[1, 2, 3])?;
    let pending = gpu.begin_read(buffer, 0, 3)?;
    device.as_webgpu_device().expect("WebGPU's").lose();
    let gone = || Err::<(), _>(GpuError::DeviceUnavailable);
    assert_eq!(pollster::block_on(pending).map(|_| ()), gone());
    gpu.sync();
    let params = BootstrapParams {
        n_samples: 0,
        seed: 1,
        max_index: 1,
    };
    assert_eq!(gpu.empty(4).map(|_| ()), gone());
    assert_eq!(gpu.buffer_write(buffer, 0, &[1]), gone());
    assert_eq!(gpu.buffer_read(buffer, 0, 1).map(|_| ()), gone());
    assert_eq!(gpu.buffer_copy(buffer, 0, buffer, 1, 1), gone());
    assert_eq!(gpu.buffer_destroy(buffer), gone());
    assert_eq!(gpu.kernel_bootstrap_sample(params, buffer), gone());
    assert_eq!(open(&device).map(|_| ()), gone());
    Ok(())
}
