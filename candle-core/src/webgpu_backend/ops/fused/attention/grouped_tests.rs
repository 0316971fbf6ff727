use super::super::cooperative::tests::Case;
use super::super::tests::by_day;
use super::*;
use crate::backend::BackendDevice;
use crate::webgpu_backend::ops::fused::attention::SdpaParams;
use crate::webgpu_backend::{Options, WebGpuDevice};
use crate::{CpuStorage, DType, Layout};
use half::f16;

const F16: [DType; 2] = [DType::F32, DType::F16];

/// Runs this kernel; fails if it has no form for the call.
fn attend(call: &Call<'_>) -> Result<WebGpuStorage> {
    let form = Form::choose(call);
    let form = form.unwrap_or_else(|| panic!("no form for {:?}", call.sizes));
    call.grouped(form)
}

/// Runs a kernel for few queries, `attend`.
pub(in super::super) fn run(
    case: Case,
    device: &WebGpuDevice,
    attend: impl FnOnce(&Call<'_>) -> Result<WebGpuStorage>,
) -> Result<()> {
    let tolerance = match case.dtypes[0] {
        DType::F32 => 1e-4,
        DType::F16 => 1e-3,
        _ => 1e-2,
    };
    case.check(device, tolerance, attend)
}

pub(in super::super) fn cases() -> Vec<Case> {
    let low = Case {
        group: 4,
        kv_heads: 2,
        keys: 300,
        head_dim: 64,
        v_dim: 64,
        dtypes: F16,
        ..Case::PLAIN
    };
    let long = Case {
        head_dim: 128,
        v_dim: 128,
        ..low
    };
    let mut cases = Vec::new();
    // One key, the keys of an iteration and its neighbours, and many parts with an incomplete last one.
    for keys in [1, 2, 63, 64, 65, 1025] {
        cases.push(Case { keys, ..low });
    }
    for group in [1, 2, 3, 8, 11] {
        cases.push(Case {
            group,
            growth: 0.1,
            ..long
        });
    }
    // Vectors that are not shared evenly, and incomplete crews.
    for [head_dim, v_dim] in [[80, 80], [256, 256], [40, 72], [8, 16]] {
        for dtypes in [F16, [DType::F32; 2]] {
            cases.push(Case {
                head_dim,
                v_dim,
                dtypes,
                ..low
            });
        }
    }
    for dtypes in [
        [DType::F32; 2],
        [DType::F16; 2],
        [DType::BF16; 2],
        [DType::F32, DType::BF16],
        [DType::BF16, DType::F16],
    ] {
        cases.push(Case {
            dtypes,
            keys: 700,
            ..long
        });
    }
    cases.extend([
        // Several queries of a sequence, each of which sees one key more.
        Case {
            queries: 5,
            causal: true,
            ..low
        },
        Case {
            queries: 3,
            causal: true,
            keys: 3,
            group: 1,
            ..low
        },
        Case {
            queries: 2,
            causal: true,
            left: Some(37),
            keys: 600,
            sinks: true,
            growth: 0.1,
            ..low
        },
        Case {
            softcap: Some(5.),
            slopes: true,
            sinks: true,
            ..low
        },
        // Rows of a batch, each with another position and length; one of them sees no key.
        Case {
            batch: 8,
            causal: true,
            start: Some(250),
            keys: 310,
            ..long
        },
        Case {
            batch: 3,
            len: Some(2),
            keys: 310,
            ..low
        },
        Case {
            batch: 2,
            causal: true,
            start: Some(500),
            left: Some(64),
            keys: 600,
            ..low
        },
        Case {
            batch: 32,
            causal: true,
            start: Some(120),
            keys: 160,
            kv_heads: 1,
            ..low
        },
    ]);
    cases
}

#[test]
fn every_case() -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let mut cases = cases().into_iter().step_by(by_day(&device, 2));
    cases.try_for_each(|case| run(case, &device, attend))
}

#[test]
fn a_row_does_not_depend_on_others() -> Result<()> {
    // From one key to all of three parts, including the boundaries of parts.
    let room = 3 * PART;
    let some = (4..32).map(|row| 1 + row * 97 % room);
    let lens: Vec<usize> = [1, room, PART, PART + 1].into_iter().chain(some).collect();
    alone_as_in_a_batch([4, 2, 64], &lens, &[2, 5, 32], attend)
}

/// Checks that texts of `lens` keys have the same bits alone and as the first rows of batches, whatever the lengths of the others.
pub(in super::super) fn alone_as_in_a_batch(
    [heads, kv_heads, dim]: [usize; 3],
    lens: &[usize],
    batches: &[usize],
    attend: impl Fn(&Call<'_>) -> Result<WebGpuStorage>,
) -> Result<()> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let (most, room) = (lens.len(), lens.iter().copied().max().unwrap_or(0));
    let mut state = 1u32;
    let mut data = |len: usize| -> Vec<f32> {
        let next = |_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.
        };
        (0..len).map(next).collect()
    };
    let q = device.storage_from_slice(&data(most * heads * dim))?;
    let mut cache = || {
        let values = data(most * kv_heads * room * dim);
        let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
        device.storage_from_slice(&values)
    };
    let (k, v) = (cache()?, cache()?);
    let starts: Vec<u32> = lens.iter().map(|len| *len as u32 - 1).collect();
    let starts = device.storage_from_slice(&starts)?;
    // Rows `first .. first + batch`, which see at most `keys` keys.
    let bits = |first: usize, batch: usize, keys: usize| -> Result<Vec<u32>> {
        let q_l = Layout::contiguous((most, heads, 1, dim)).narrow(0, first, batch)?;
        let kv_l = Layout::contiguous((most, kv_heads, room, dim));
        let kv_l = kv_l.narrow(0, first, batch)?.narrow(2, 0, keys)?;
        let starts_l = Layout::contiguous(most).narrow(0, first, batch)?;
        let params = SdpaParams {
            scale: 0.125,
            softcap: None,
            left: None,
            right: Some(0),
            bias: None,
            slopes: None,
            sinks: None,
            starts: Some((&starts, &starts_l)),
            lens: None,
            pages: None,
        };
        let call = super::super::call([(&q, &q_l), (&k, &kv_l), (&v, &kv_l)], params)?;
        let CpuStorage::F32(got) = attend(&call)?.to_cpu_storage()? else {
            unreachable!("queries are f32")
        };
        assert!(got.iter().all(|x| x.is_finite()));
        Ok(got.into_iter().map(f32::to_bits).collect())
    };
    let row_len = heads * dim;
    for &batch in batches {
        let longest = lens[..batch].iter().copied().max().unwrap_or(0);
        let together = bits(0, batch, longest)?;
        for (row, &len) in lens[..batch].iter().enumerate() {
            let own = &together[row * row_len..][..row_len];
            assert!(
                own == bits(row, 1, len)?,
                "row {row} of {batch}, of {len} keys"
            );
        }
    }
    Ok(())
}

/// WebGPU guarantees 16 KiB of workgroup memory.
#[test]
fn forms_fit_the_workgroup_memory() {
    for piece in [4, 8] {
        for head_dim in [8, 64, 80, 128, 256, 512] {
            for rows in 1..=8 {
                let form = Form {
                    rows,
                    piece,
                    head_dim,
                    v_dim: head_dim,
                };
                let few = rows <= 4 && head_dim <= 128;
                assert!(
                    form.shared_bytes() <= if few { 16 << 10 } else { 40 << 10 },
                    "{form:?}"
                );
                assert!(form.own_keys() >= 1 && form.crews() >= 1);
            }
        }
    }
}
