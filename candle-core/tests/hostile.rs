//! Malformed files: truncated, overlapping, overflowing, negative, enormous, endlessly nested. Each is an error that names the part of the
//! file; none panics. (The fuzz targets check that no file takes more memory than it justifies.)

use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::path::PathBuf;

use candle_core::npy::{self, NpzTensors};
use candle_core::pickle::{self, Object, PthTensors, Stack};
use candle_core::safetensors::{self, BufferedSafetensors, MmapedFile, MmapedSafetensors};
use candle_core::{Device, Error, Result, Tensor};

/// Checks that an error contains all `parts`.
fn assert_names(what: &str, result: Result<()>, parts: &[&str]) {
    let err = match result {
        Ok(()) => panic!("{what}: was read"),
        Err(err) => err.to_string(),
    };
    for part in parts {
        assert!(err.contains(part), "{what}: `{err}` lacks `{part}`");
    }
}

/// A table of malformed files: what is wrong, the bytes, and what the error contains.
macro_rules! cases {
    ($($what:literal: $bytes:expr => $($part:expr),+;)*) => {
        vec![$(($what, Vec::<u8>::from($bytes), vec![$($part),+])),*]
    };
}

fn safetensors_file(header: &str, data: usize) -> Vec<u8> {
    let len = (header.len() as u64).to_le_bytes();
    [&len, header.as_bytes(), &vec![0; data]].concat()
}

fn f32_tensor(name: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn safetensors_files() -> Result<()> {
    let one = |shape: &str, start, end, data| {
        safetensors_file(&format!("{{{}}}", f32_tensor("w", shape, start, end)), data)
    };
    let two = |a: (u64, u64), b: (u64, u64), data| {
        let (a, b) = (
            f32_tensor("a", "2", a.0, a.1),
            f32_tensor("b", "2", b.0, b.1),
        );
        safetensors_file(&format!("{{{a},{b}}}"), data)
    };
    // Sizes whose sum exceeds 2^64 and wraps to a small number.
    let step = 1u64 << 61;
    let wraps = (0..8).map(|i| {
        let end = if i == 7 { 8 } else { (i + 1) * step };
        f32_tensor(&format!("t{i}"), "576460752303423488", i * step, end)
    });
    let wraps = format!("{{{}}}", wraps.collect::<Vec<_>>().join(","));
    let valid = one("2", 0, 8, 8);
    let header = "safetensors header";
    let cases = cases! {
        "empty": b"" => header, "length";
        "seven bytes": vec![0; 7] => header, "length";
        "no header": vec![0; 8] => header;
        "enormous header": vec![0xff; 8] => header, "length";
        "header past the end": [&[99, 0, 0, 0, 0, 0, 0, 0][..], b"{}"].concat() => header, "99";
        "not UTF-8": [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[0xff]].concat() => header, "UTF-8";
        "cut header": safetensors_file("{\"w\":{", 0) => header, "JSON";
        "nested header": safetensors_file(&"[".repeat(100_000), 0) => header, "JSON";
        "metadata that is none": safetensors_file("{\"__metadata__\":3}", 0) => header, "__metadata__";
        "no offsets": safetensors_file("{\"w\":{\"dtype\":\"F32\",\"shape\":[]}}", 0) => "tensor w", "data_offsets";
        "unknown dtype": safetensors_file("{\"w\":{\"dtype\":\"X7\",\"shape\":[],\"data_offsets\":[0,0]}}", 0) => "tensor w", "X7";
        "negative size": one("-1", 0, 4, 4) => "tensor w";
        "size past 64 bits": one("99999999999999999999", 0, 4, 4) => "tensor w";
        "product past 64 bits": one("4294967296,4294967296", 0, 4, 4) => "tensor w", "overflow";
        "bytes past 64 bits": one("4611686018427387904", 0, 4, 4) => "tensor w", "overflow";
        "too few bytes for the shape": one("3", 0, 8, 8) => "tensor w";
        "too many bytes for the shape": one("1", 0, 8, 8) => "tensor w";
        "end before start": one("2", 8, 0, 8) => "tensor w", "offset";
        "past the end": one("2", 0, 8, 7) => "tensor w", "8 of 7";
        "enormous and past the end": one("2305843009213693952", 0, 1 << 63, 8) => "tensor w";
        "overlapping": two((0, 8), (4, 12), 12) => "tensor b", "offset";
        "the same bytes": two((0, 8), (0, 8), 8) => "tensor", "offset";
        "a hole": two((0, 8), (12, 20), 20) => "tensor b", "offset";
        "sum past 64 bits": safetensors_file(&wraps, 8) => "tensor t";
        "bytes left over": one("2", 0, 8, 9) => header, "9 follow";
    };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.safetensors");
    for (what, bytes, parts) in cases {
        let in_file = [parts.as_slice(), &["hostile.safetensors"]].concat();
        std::fs::write(&path, &bytes)?;
        assert_names(
            what,
            safetensors::load(&path, &Device::Cpu).map(drop),
            &in_file,
        );
        // SAFETY: nothing else uses the file.
        let mapped = unsafe { MmapedSafetensors::new(&path) };
        assert_names(what, mapped.map(drop), &in_file);
        // SAFETY: nothing else uses the file.
        let mapped = unsafe { MmapedFile::new(&path) }?;
        assert_names(what, mapped.deserialize().map(drop), &in_file);
        assert_names(what, BufferedSafetensors::new(bytes).map(drop), &parts);
    }
    assert!(BufferedSafetensors::new(valid)?
        .load("w", &Device::Cpu)
        .is_ok());
    Ok(())
}

fn npy_file(version: u8, header: &str, data: usize) -> Vec<u8> {
    let len = (header.len() as u32).to_le_bytes();
    let len = if version == 1 { &len[..2] } else { &len };
    [
        b"\x93NUMPY",
        &[version, 0][..],
        len,
        header.as_bytes(),
        &vec![0; data],
    ]
    .concat()
}

#[test]
fn npy_files() -> Result<()> {
    let shaped = |shape: &str, data| {
        npy_file(
            1,
            &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"),
            data,
        )
    };
    let typed = |descr: &str| {
        npy_file(
            1,
            &format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,)}}"),
            8,
        )
    };
    let mut long = npy_file(2, "{}", 0);
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let cases = cases! {
        "empty": b"" => "magic";
        "another file": b"PK\x03\x04zip" => "magic", "PK";
        "no version": b"\x93NUMPY" => "version";
        "version 9": npy_file(9, "{}", 0) => "version", "9.0";
        "no header length": b"\x93NUMPY\x01\x00\x05" => "header length";
        "cut header": npy_file(1, &" ".repeat(100), 0)[..50].to_vec() => "header", "ends after 40";
        "enormous header": long => "header length", "4294967295";
        "no dictionary": npy_file(1, "[]", 0) => "header", "`{`";
        "open dictionary": npy_file(1, "{'descr': '<f4'", 0) => "header", "`}`";
        "open text": npy_file(1, "{'descr': '<f4", 0) => "header", "`'`";
        "missing key": npy_file(1, "{'descr': '<f4', 'fortran_order': False}", 0) => "header", "`shape`";
        "unknown key": npy_file(1, "{'order': 1}", 0) => "header", "`order`";
        "no boolean": npy_file(1, "{'fortran_order': 1}", 0) => "header", "True or False";
        "more after the header": npy_file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", 4) => "header", "`x`";
        "negative size": shaped("(-1,)", 8) => "shape", "-1";
        "size past 64 bits": shaped("(99999999999999999999,)", 8) => "shape", "99999999999999999999";
        "open shape": shaped("(2, ", 8) => "header", "`)`";
        "no shape": shaped("7", 8) => "header", "`(`";
        "product past 64 bits": shaped("(4294967296, 4294967296)", 8) => "data", "4294967296";
        "bytes past 64 bits": shaped("(4611686018427387904,)", 8) => "data", "4611686018427387904";
        "enormous": shaped("(1099511627776,)", 8) => "data", "ends after 8";
        "cut data": shaped("(2, 3)", 23) => "data", "[2, 3]", "24", "ends after 23";
        "records": typed("[('x', '<f4')]") => "descr", "records";
        "complex": typed("'<c8'") => "descr", "<c8";
        "text": typed("'<U3'") => "descr", "<U3";
        "objects, which are pickles": typed("'|O'") => "descr", "|O";
        "no dtype": typed("''") => "descr";
    };
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.npy");
    for (what, bytes, parts) in cases {
        std::fs::write(&path, &bytes)?;
        let in_file = [parts.as_slice(), &["hostile.npy"]].concat();
        assert_names(what, Tensor::read_npy(&path).map(drop), &in_file);
        let npz = zip_of(&[("w.npy", &bytes)], zip::CompressionMethod::Deflated)?;
        let in_entry = [parts.as_slice(), &["zip entry w.npy"]].concat();
        assert_names(
            what,
            NpzTensors::from_bytes(npz)?.get("w").map(drop),
            &in_entry,
        );
    }
    Ok(())
}

fn zip_of(entries: &[(&str, &[u8])], method: zip::CompressionMethod) -> Result<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in entries {
        zip.start_file(*name, options)?;
        zip.write_all(bytes)?;
    }
    Ok(zip.finish()?.into_inner())
}

#[test]
fn zip_archives() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.zip");
    let mut array = vec![];
    npy::to_writer(&Tensor::arange(0f32, 64., &Device::Cpu)?, &mut array)?;
    let archive = zip_of(&[("w.npy", &array)], zip::CompressionMethod::Stored)?;
    for len in [0, 1, 30, archive.len() / 2, archive.len() - 1] {
        std::fs::write(&path, &archive[..len])?;
        let parts = ["hostile.zip", "list of zip entries"];
        assert_names("cut", NpzTensors::new(&path).map(drop), &parts);
        assert_names("cut", pickle::read_all(&path).map(drop), &parts);
    }
    // The checksum detects a flipped data bit.
    let mut flipped = archive.clone();
    flipped[200] ^= 1;
    std::fs::write(&path, &flipped)?;
    let parts = ["hostile.zip", "zip entry w.npy", "checksum"];
    assert_names("flipped", Tensor::read_npz(&path).map(drop), &parts);
    let parts = ["hostile.zip", "data.pkl", "1 entries"];
    std::fs::write(&path, &archive)?;
    assert_names("no checkpoint", pickle::read_all(&path).map(drop), &parts);
    Ok(())
}

fn value(pickle: &[u8]) -> Result<Object> {
    let mut stack = Stack::empty();
    stack.read_loop(&mut &*pickle)?;
    stack.finalize()
}

#[test]
fn pickles() {
    let nest =
        |before: &[u8], step: &[u8], times: usize| [before, &step.repeat(times), b"."].concat();
    let cases = cases! {
        "empty": b"" => "byte 0";
        "no end": b"\x80\x02N" => "byte 3";
        "protocol 9": b"\x80\x09N." => "Proto at byte 0", "9";
        "an instruction of protocol 0": b"NI1\n." => "0x49 at byte 1", "pickle_protocol=2";
        "an enormous text of protocol 4": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc" => "BinUnicode8 at byte 0";
        "items of no set": b"](K\x01\x90." => "AddItems at byte 4", "a list";
        "a class of numbers": b"K\x01K\x02\x93." => "StackGlobal at byte 4", "an integer";
        "bytes outside of the pickle": b"N\x97." => "NextBuffer at byte 1", "buffer_callback";
        "cut integer": b"J\x01\x02" => "BinInt at byte 0";
        "cut float": b"NG\x01" => "BinFloat at byte 1";
        "cut long": b"\x8a\xff\x01" => "Long1 at byte 0", "255";
        "enormous text": b"X\xff\xff\xff\xffabc" => "BinUnicode at byte 0", "4294967295", "ends after 3";
        "text that is none": b"X\x01\0\0\0\xff." => "BinUnicode at byte 0", "utf-8";
        "name without end": [b"c", &vec![b'a'; 100_000][..]].concat() => "Global at byte 0", "4096";
        "never remembered": b"Nh\x07." => "BinGet at byte 1", "7";
        "never remembered": b"Nj\0\0\0\xff." => "LongBinGet at byte 1", "4278190080";
        "nothing to remember": b"q\0." => "BinPut at byte 0";
        "no value": b"." => "Stop at byte 0";
        "a mark is not a value": b"(." => "Stop at byte 1", "mark";
        "no mark": b"Nt." => "Tuple at byte 1", "mark";
        "too few values": b"N\x87." => "Tuple3 at byte 1", "3";
        "values below a mark": b"N(N\x86." => "Tuple2 at byte 3";
        "no list": b"NNa." => "Append at byte 2", "None";
        "no list": b")(NNe." => "Appends at byte 4", "tuple";
        "no dictionary": b"]NNs." => "SetItem at byte 3", "list";
        "a key without value": b"}(NNNu." => "SetItems at byte 5", "no value";
        "a key without value": b"(Nd." => "Dict at byte 2", "no value";
        "nothing to call": b")R." => "Reduce at byte 1";
        "nothing to make": b"\x81." => "NewObj at byte 0";
        "a list in itself": b"]q\0h\0a." => "value", "nested";
        "a dictionary in itself": b"}q\0Nh\0s." => "value", "nested";
        "an object that is its own state": b"c\n\n)\x81q\0h\0b." => "value", "nested";
        "nested tuples": nest(b"N", b"\x85", 1_000_000) => "value", "nested";
        "nested states": nest(b"c\n\n)\x81", b"Nb", 100_000) => "value", "nested";
        // 2^60 values in 400 bytes.
        "doubling": nest(b"Nq\0", b"h\0h\0\x86q\0", 60) => "values", "when expanded";
        "one long text, often": [&b"X\0\0\x01\0"[..], &[b'a'; 65536], b"q\0(", &b"h\0".repeat(20_000), b"t."].concat()
            => "values", "when expanded";
        "a dictionary that takes itself in": nest(b"}q\0NNs", b"h\0b", 100) => "Build at byte", "copied";
        "one list in many dictionaries": [&b"(("[..], &b"NN\x86".repeat(1000), b"tq\0", &b"ccollections\nOrderedDict\nh\0\x85R".repeat(1000), b"t."].concat()
            => "Reduce at byte", "copied";
    };
    for (what, bytes, parts) in cases {
        assert_names(
            what,
            value(&bytes).map(drop),
            &[parts.as_slice(), &["pickle"]].concat(),
        );
    }
}

#[test]
fn a_pickle_calls_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let touched = dir.path().join("touched");
    let command = format!("touch '{}'", touched.display());
    let len = u32::try_from(command.len())?.to_le_bytes();
    let bytes = [b"cos\nsystem\nX", &len[..], command.as_bytes(), b"\x85R."].concat();
    let (callable, _) = value(&bytes)?.reduce()?;
    assert_eq!(callable.class()?, ("os".to_string(), "system".to_string()));
    assert!(!touched.exists());
    Ok(())
}

/// Returns a checkpoint of one tensor `w` over a storage of 6 floats. The numbers are pickled integers.
fn checkpoint(storage: &str, offset: &[u8], shape: &[u8], stride: &[u8], size: &[u8]) -> Vec<u8> {
    let text = |text: &str| {
        [
            b"X",
            &(text.len() as u32).to_le_bytes()[..],
            text.as_bytes(),
        ]
        .concat()
    };
    [
        b"\x80\x02}",
        &text("w")[..],
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        &text("storage"),
        b"ctorch\n",
        storage.as_bytes(),
        b"\n",
        &text("0"),
        &text("cpu"),
        size,
        b"tQ",
        offset,
        shape,
        stride,
        b"\x89}tRs.",
    ]
    .concat()
}

#[test]
fn checkpoints() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("hostile.pth");
    let data = vec![0; 24];
    let read = |pickle: &[u8], entries: &[(&str, &[u8])]| -> Result<usize> {
        let entries = [&[("a/data.pkl", pickle)], entries].concat();
        std::fs::write(&path, zip_of(&entries, zip::CompressionMethod::Deflated)?)?;
        Ok(pickle::read_all(&path)?.len())
    };
    let storage: &[(&str, &[u8])] = &[("a/data/0", &data)];
    let (zero, one, two, three, six): (&[u8], &[u8], _, _, _) =
        (b"K\0", b"K\x01", b"K\x02", b"K\x03", b"K\x06");
    let tuple2 = |a: &[u8], b: &[u8]| [a, b, b"\x86"].concat();
    let (shape, stride) = (tuple2(two, three), tuple2(three, one));
    let huge: &[u8] = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let minus: &[u8] = b"J\xff\xff\xff\xff";
    let float = |offset: &[u8], shape: &[u8], stride: &[u8], size: &[u8]| {
        checkpoint("FloatStorage", offset, shape, stride, size)
    };
    let valid = float(zero, &shape, &stride, six);
    assert_eq!(read(&valid, storage)?, 1);
    let unknown = checkpoint("ComplexFloatStorage", zero, &shape, &stride, six);
    assert_eq!(
        read(&unknown, storage)?,
        0,
        "a dtype without counterpart is passed over"
    );

    let pickle = "zip entry a/data.pkl";
    let entry = "zip entry a/data/0";
    let cases = cases! {
        "no dictionary": b"K\x01." => pickle, "found 1";
        "a model": b"cm\nNet\n)\x81}b." => pickle, "m.Net", "state_dict";
        "cut pickle": valid[..valid.len() - 3].to_vec() => pickle, "at byte";
        "negative offset": float(minus, &shape, &stride, six) => pickle, "tensor w", "offset", "-1";
        "negative size": float(zero, &tuple2(minus, three), &stride, six) => pickle, "tensor w", "shape", "-1";
        "negative stride": float(zero, &shape, &tuple2(minus, one), six) => pickle, "tensor w", "stride", "-1";
        "no tuple": float(zero, b"N", &stride, six) => pickle, "tensor w", "shape", "None";
        "missing stride": float(zero, &shape, b")", six) => pickle, "tensor w", "stride []";
        "past its storage": float(one, &shape, &stride, six) => pickle, "tensor w", "past its storage of 6";
        "far past its storage": float(huge, &shape, &stride, six) => pickle, "tensor w", "past its storage";
        "enormous stride": float(zero, &shape, &tuple2(huge, huge), six) => pickle, "tensor w", "past its storage";
        "enormous sizes": float(zero, &tuple2(huge, huge), &stride, six) => pickle, "tensor w", "past its storage";
        "repeated without end": float(zero, &tuple2(huge, huge), &tuple2(zero, zero), six) => pickle, "tensor w", "repeats";
        "claims more than the storage has": float(zero, &shape, &tuple2(huge, one), huge) => pickle, "tensor w";
        "a storage longer than its entry": float(six, &shape, &stride, b"M\xff\xff") => "tensor w", entry, "the entry has 24";
        "an enormous storage": float(zero, &tuple2(b"J\0\0\0\x7f", one), &tuple2(one, one), huge) => "tensor w", entry, "the entry has 24";
        "a storage that is none": float(zero, &shape, &stride, b"N") => pickle, "tensor w", "storage", "size";
    };
    for (what, bytes, parts) in cases {
        let parts = [parts.as_slice(), &["hostile.pth"]].concat();
        assert_names(what, read(&bytes, storage).map(drop), &parts);
    }
    assert_names(
        "no storage",
        read(&valid, &[]).map(drop),
        &["hostile.pth", "tensor w", entry],
    );
    let order: &[(&str, &[u8])] = &[("a/data/0", &data), ("a/byteorder", b"middle")];
    assert_names(
        "byte order",
        read(&valid, order).map(drop),
        &["hostile.pth", "zip entry a/byteorder", "middle"],
    );
    // 10 MB of one instruction in 10 kB.
    let bomb = read(&b"N".repeat(10_000_000), storage);
    assert_names(
        "a bomb",
        bomb.map(drop),
        &["hostile.pth", pickle, "unpacks to more"],
    );
    let name = format!("{}/data.pkl", "a".repeat(2000));
    std::fs::write(
        &path,
        zip_of(&[(&name, &valid)], zip::CompressionMethod::Stored)?,
    )?;
    assert_names(
        "a long name",
        pickle::read_all(&path).map(drop),
        &["hostile.pth", "2001 bytes"],
    );

    // The same storage under 4000 names: 400 MB from about 100 kB.
    let zeros = vec![0; 100_000];
    let item = |i: u32| {
        let name = i.to_le_bytes();
        let text: Vec<u8> = name.iter().map(|byte| byte % 64 + 48).collect();
        [b"X\x10\0\0\0", &text.repeat(4)[..], b"h\0s"].concat()
    };
    let flat = float(
        zero,
        b"M\xa8\x61\x85",
        &one.iter().copied().chain(*b"\x85").collect::<Vec<u8>>(),
        b"M\xa8\x61",
    );
    let flat = flat.strip_suffix(b"s.").expect("it ends so");
    let items: Vec<u8> = (0..4000)
        .map(|i| item(i % 64 + ((i / 64) << 8)))
        .collect::<Vec<_>>()
        .concat();
    let shared = [flat, b"q\0s", &items, b"."].concat();
    let many = read(&shared, &[("a/data/0", &zeros)]);
    assert_names("many names", many.map(drop), &["hostile.pth", "in total"]);
    Ok(())
}

/// Returns the valid files that the tests below damage.
fn valid_files() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files"));
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("valid.safetensors");
    let a = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
    let b = Tensor::new(&[1u8, 2, 3], &Device::Cpu)?;
    safetensors::save(&HashMap::from([("a", a), ("b", b)]), &path)?;
    let mut files = vec![("valid.safetensors", std::fs::read(path)?)];
    for name in [
        "version1.npy",
        "arrays.npz",
        "arrays_deflated.npz",
        "dtypes.pth",
        "views.pth",
        "old_deflated.pth",
    ] {
        files.push((name, std::fs::read(folder.join(name))?));
    }
    Ok(files)
}

/// Reads everything in a file, and every element once.
fn read_all(name: &str, bytes: Vec<u8>) -> Result<()> {
    let tensors: Vec<Tensor> = match name.rsplit('.').next() {
        Some("safetensors") => {
            let tensors = safetensors::load_buffer(&bytes, &Device::Cpu)?;
            tensors.into_values().collect()
        }
        Some("npy") => vec![npy::from_reader(&mut bytes.as_slice())?],
        Some("npz") => {
            let npz = NpzTensors::from_bytes(bytes)?;
            let names = npz.names();
            let arrays = names
                .into_iter()
                .map(|name| npz.get(name).map(|array| array.into_iter()));
            arrays
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .collect()
        }
        _ => {
            let key = (name == "views.pth").then_some("model");
            let pth = PthTensors::from_bytes(bytes, key)?;
            let names = pth.tensor_infos().keys();
            let tensors = names.map(|name| pth.get(name).map(|tensor| tensor.into_iter()));
            tensors
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .collect()
        }
    };
    for tensor in tensors {
        tensor.write_bytes(&mut std::io::sink())?;
    }
    Ok(())
}

#[test]
fn whatever_is_damaged_panics_nowhere() -> Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for (name, valid) in valid_files()? {
        read_all(name, valid.clone()).map_err(|err| err.context(name))?;
        let mut refused = 0;
        for _ in 0..1500 {
            let mut bytes = valid.clone();
            match random(5) {
                0 => bytes.truncate(random(valid.len())),
                1 => {
                    let byte = random(valid.len());
                    bytes[byte] ^= 1 << random(8);
                }
                2 => {
                    let byte = random(valid.len());
                    bytes[byte] = [0, 0xff, 0x7f, 0x80][random(4)];
                }
                3 => {
                    let (start, len) = (random(valid.len()), 1 + random(8));
                    let end = (start + len).min(valid.len());
                    bytes[start..end].fill([0, 0xff][random(2)]);
                }
                _ => {
                    let (from, to) = (random(valid.len()), random(valid.len()));
                    let len = random(16).min(valid.len() - from.max(to));
                    bytes.copy_within(from..from + len, to);
                }
            }
            refused += usize::from(read_all(name, bytes).is_err());
        }
        assert!(refused > 300, "{name}: {refused} of 1500 were refused");
    }
    Ok(())
}

/// `Error` keeps the variants that programs match on, below the context that names the parts.
#[test]
fn the_kind_of_an_error_stays() {
    let mut err = BufferedSafetensors::new(vec![]).map(drop).unwrap_err();
    loop {
        err = match err {
            Error::Context { inner, .. } | Error::WithBacktrace { inner, .. } => *inner,
            err => break assert!(matches!(err, Error::SafeTensor(_)), "{err}"),
        }
    }
}
