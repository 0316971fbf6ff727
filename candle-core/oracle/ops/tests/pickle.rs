//! PyTorch checkpoints: neither side writes them, so they are built here in the form of `torch.save` (a zip archive with a pickle of
//! protocol 2 and one member for each storage).

use crate::hold;
use oracle_ops::case::{Case, Format, Input, Op, Outcome};
use oracle_ops::check::{compare, Agreed};
use oracle_ops::generate::{Fill, Gen};
use oracle_ops::value::{Tolerance, Ty};
use oracle_ops::{ours, upstream};
use std::io::Write;
use std::path::Path;

fn storage_name(ty: Ty) -> &'static str {
    match ty {
        Ty::U8 => "ByteStorage",
        Ty::I16 => "ShortStorage",
        Ty::I32 => "IntStorage",
        Ty::I64 => "LongStorage",
        Ty::F16 => "HalfStorage",
        Ty::BF16 => "BFloat16Storage",
        Ty::F64 => "DoubleStorage",
        _ => "FloatStorage",
    }
}

/// A pickle being written, with the opcodes of the format's documentation (CPython's `pickletools`).
struct Pickle(Vec<u8>);

impl Pickle {
    fn text(&mut self, text: &str) {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn int(&mut self, n: usize) {
        self.0.push(b'J');
        self.0.extend((n as i32).to_le_bytes());
    }

    fn global(&mut self, module: &str, name: &str) {
        self.0.extend(format!("c{module}\n{name}\n").bytes());
    }

    fn sizes(&mut self, sizes: &[usize]) {
        if sizes.len() > 3 {
            self.0.push(b'(');
        }
        for size in sizes {
            self.int(*size);
        }
        // The short forms for up to three items have separate opcodes.
        self.0.push(match sizes.len() {
            0 => b')',
            n @ 1..=3 => 0x84 + n as u8,
            _ => b't',
        });
    }

    /// `torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, False, OrderedDict())`
    fn tensor(&mut self, key: usize, input: &Input) {
        let view = &input.view;
        let mut in_memory = vec![1; view.base.len()];
        for d in (1..view.base.len()).rev() {
            in_memory[d - 1] = in_memory[d] * view.base[d];
        }
        let strides: Vec<_> = view.permute.iter().map(|d| in_memory[*d]).collect();
        let start = strides.iter().zip(&view.keep);
        let start: usize = start.map(|(stride, (start, _))| stride * start).sum();
        let seen: Vec<_> = strides
            .iter()
            .zip(view.keep.iter().zip(&view.dims))
            .map(|(stride, ((_, len), dim))| if len == dim { *stride } else { 0 })
            .collect();
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.0.extend(b"((");
        self.text("storage");
        self.global("torch", storage_name(input.ty()));
        self.text(&key.to_string());
        self.text("cpu");
        self.int(view.base.iter().product());
        self.0.extend(b"tQ");
        self.int(start);
        self.sizes(&view.dims);
        self.sizes(&seen);
        self.0.push(0x89);
        self.global("collections", "OrderedDict");
        self.0.extend(b")RtR");
    }
}

fn write(inputs: &[Input], path: &Path) -> zip::result::ZipResult<()> {
    let mut pickle = Pickle(b"\x80\x02}(".to_vec());
    for (i, input) in inputs.iter().enumerate() {
        pickle.text(&format!("t{i}"));
        pickle.tensor(i, input);
    }
    pickle.0.extend(b"u.");
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path)?);
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    archive.start_file("archive/data.pkl", stored)?;
    archive.write_all(&pickle.0)?;
    for (i, input) in inputs.iter().enumerate() {
        archive.start_file(format!("archive/data/{i}"), stored)?;
        archive.write_all(&input.data.bytes())?;
    }
    archive.finish()?;
    Ok(())
}

fn tensors(g: &mut Gen) -> Case {
    // Upstream ignores tensors of IntStorage.
    let types = [Ty::U8, Ty::I64, Ty::F16, Ty::BF16, Ty::F32, Ty::F64];
    let inputs = (0..g.within(1, 4))
        .map(|_| {
            let (ty, dims) = (g.pick(&types), g.full_shape(0..=5));
            let make = if g.chance(70) { Gen::whole } else { Gen::input };
            make(g, ty, &dims, Fill::Few)
        })
        .collect();
    Case {
        inputs,
        op: Op::Format,
    }
}

fn read_alike(case: &Case) -> Result<Agreed, String> {
    let folder = tempfile::tempdir().map_err(|err| err.to_string())?;
    let path = folder.path().join("checkpoint.pt");
    write(&case.inputs, &path).map_err(|err| err.to_string())?;
    let ours = ours::interpret::load(Format::Pickle, &path);
    let theirs = upstream::interpret::load(Format::Pickle, &path);
    if let (Outcome::Done(_), Outcome::Refused(_)) = (&ours, &theirs) {
        // Upstream only reads row-major and column-major tensors.
        return Ok(Agreed::Nothing);
    }
    compare(&ours, &theirs, Tolerance::EXACT)
        .map_err(|what| format!("{what}\n{case:?}\nours: {ours:?}\nupstream: {theirs:?}"))
}

#[test]
fn checkpoints() {
    hold(tensors, read_alike);
}
