//! Files that one side writes and the other reads, in both directions.

use crate::hold;
use oracle_ops::case::{Case, Format, Op, Outcome};
use oracle_ops::check::{compare, Agreed};
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};
use oracle_ops::{ours, upstream};

/// Some tensors; the op is not used.
fn tensors(g: &mut Gen) -> Case {
    let inputs = (0..g.within(1, 4))
        .map(|_| {
            let (ty, dims) = (g.pick(&Ty::ALL), g.shape(0..=4));
            g.input(ty, &dims, Fill::Special)
        })
        .collect();
    Case {
        inputs,
        op: Op::Format,
    }
}

/// A file that one side writes reads the same on both sides, and both sides reject the same files.
fn both_ways(case: &Case, write: Format, read: &[Format]) -> Result<Agreed, String> {
    let folder = tempfile::tempdir().map_err(|err| err.to_string())?;
    let (by_us, by_them) = (folder.path().join("ours"), folder.path().join("theirs"));
    let saved = (
        ours::interpret::save(write, &case.inputs, &by_us),
        upstream::interpret::save(write, &case.inputs, &by_them),
    );
    let context = |what: String| format!("{write:?}: {what}\n{case:?}");
    let agreed = compare(&saved.0, &saved.1, Tolerance::EXACT)
        .map_err(|what| context(format!("writing: {what}: {saved:?}")))?;
    if !matches!(saved, (Outcome::Done(_), Outcome::Done(_))) {
        return Ok(agreed);
    }
    for read in read {
        let reference = upstream::interpret::load(*read, &by_them);
        for (reader, result) in [
            ("ours of theirs", ours::interpret::load(*read, &by_them)),
            ("theirs of ours", upstream::interpret::load(*read, &by_us)),
            ("ours of ours", ours::interpret::load(*read, &by_us)),
        ] {
            compare(&result, &reference, Tolerance::EXACT).map_err(|what| {
                context(format!(
                    "{reader}, {read:?}: {what}\n{result:?}\n{reference:?}"
                ))
            })?;
        }
    }
    Ok(agreed)
}

#[test]
fn safetensors() {
    let read = [Format::Safetensors, Format::SafetensorsMapped];
    hold(tensors, |case| both_ways(case, Format::Safetensors, &read));
}

#[test]
fn safetensors_of_one_tensor() {
    let read = [Format::Safetensors];
    hold(tensors, |case| {
        both_ways(case, Format::SafetensorsOne, &read)
    });
}

#[test]
fn npy() {
    hold(tensors, |case| both_ways(case, Format::Npy, &[Format::Npy]));
}

#[test]
fn npz() {
    let read = [Format::Npz, Format::NpzByName];
    hold(tensors, |case| both_ways(case, Format::Npz, &read));
}
