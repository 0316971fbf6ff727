use super::super::grouped::tests::{alone_as_in_a_batch, cases, run};
use super::super::tests::{by_day, forms};
use super::*;
use crate::webgpu_backend::{Options, WebGpuDevice};

/// Runs this kernel; fails if it has no form for the call.
fn attend(call: &Call<'_>) -> Result<WebGpuStorage> {
    let form = Form::choose(call);
    let form = form.unwrap_or_else(|| panic!("no form for {:?}", call.sizes));
    call.teams(form)
}

/// The device, if it has subgroups that are large enough; the kernel cannot run on others.
fn device() -> Result<Option<WebGpuDevice>> {
    let device = WebGpuDevice::with_options(0, &Options::default())?;
    let size = device.kernels().caps.subgroup;
    Ok(size
        .is_some_and(|size| size >= LEAST_TEAM)
        .then_some(device))
}

#[test]
fn every_case() -> Result<()> {
    let Some(device) = device()? else {
        return Ok(());
    };
    let mut cases = cases().into_iter().step_by(by_day(&device, 2));
    cases.try_for_each(|case| run(case, &device, attend))
}

#[test]
fn a_row_does_not_depend_on_others() -> Result<()> {
    if device()?.is_none() {
        return Ok(());
    }
    // One part, several, and the lengths at which parts are doubled.
    let (single, least) = (SINGLE_PART, LEAST_PART);
    let some = (0..20).map(|row| 1 + row * 97 % 1000);
    let lens: Vec<usize> = [1, 1000, single, single + 1, least, least + 1]
        .into_iter()
        .chain(some)
        .collect();
    alone_as_in_a_batch([4, 2, 64], &lens, &[2, 5, 26], attend)?;
    let full = least * BUSY_WORKGROUPS / 8;
    alone_as_in_a_batch(
        [8, 8, 16],
        &[2 * full + 1, full, full + 1, 70],
        &[2, 4],
        attend,
    )
}

fn form([head_dim, v_dim]: [u32; 2], rows: u32, piece: u32, subgroup: u32) -> Form {
    Form {
        rows,
        piece,
        head_dim,
        v_dim,
        subgroup,
    }
}

/// Adapters here have subgroups of one size, so at least the compiler checks the others.
#[test]
fn every_form_is_valid_wgsl() {
    let all: Vec<Heads> = forms([128, 128]).collect();
    let mut heads = all.into_iter().cycle();
    for subgroup in [8, 16, 32, 64, 128] {
        for (dims, rows) in [
            ([128, 128], 4),
            ([64, 64], 3),
            ([80, 40], 1),
            ([256, 256], 8),
            ([8, 16], 8),
            ([512, 512], 1),
        ] {
            for piece in [4, 8] {
                let form = form(dims, rows, piece, subgroup);
                let heads = Heads {
                    head_dim: dims[0],
                    v_dim: dims[1],
                    kv_elem: if piece == 4 { Elem::F32 } else { Elem::F16 },
                    ..heads.next().expect("a cycle")
                };
                SdpaTeams { form, heads }
                    .shader(&Caps::default())
                    .assert_valid();
            }
        }
    }
}

#[test]
fn a_score_is_computed_by_a_lane_of_its_row() {
    for subgroup in [8, 32, 64] {
        for piece in [4, 8] {
            for head_dim in [8, 64, 80, 128, 256, 512] {
                for rows in 1..=8 {
                    let form = form([head_dim; 2], rows, piece, subgroup);
                    let (team, ahead, outputs) = (form.team(), form.ahead(), form.outputs());
                    assert!(form.packs() * team * piece >= head_dim, "{form:?}");
                    assert!(team >= form.row_slots() && outputs <= ahead, "{form:?}");
                    assert!(team * outputs >= form.row_slots() * ahead, "{form:?}");
                    // The keys of a part are whole iterations.
                    assert!(form.turn() >= WORKGROUP / MOST_TEAM, "{form:?}");
                    let few = rows <= 4 && head_dim <= 128;
                    let most = if few { 16 << 10 } else { 40 << 10 };
                    assert!(form.shared_bytes() <= most, "{form:?}");
                }
            }
        }
    }
}
