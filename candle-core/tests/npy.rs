//! npy and npz files: files that NumPy wrote, round trips, and rejected files.

use std::path::PathBuf;

use candle_core::npy::{self, NpzTensors};
use candle_core::{DType, Device, Result, Tensor};

/// Returns the path of a file in `tests/files`, which `generate.py` makes with NumPy.
fn file(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files");
    PathBuf::from(folder).join(name)
}

fn as_f64(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The contents of the files: 2 rows of 3, without the signs in unsigned types.
const SIGNED: [f64; 6] = [-2., -1., 0., 1., 2., 3.];
const UNSIGNED: [f64; 6] = [2., 1., 0., 1., 2., 3.];

#[test]
fn arrays_of_numpy() -> Result<()> {
    for name in ["arrays.npz", "arrays_deflated.npz"] {
        let npz = NpzTensors::new(file(name))?;
        assert_eq!(npz.names().len(), 19);
        let check = |name: &str, dtype: DType, dims: &[usize], values: &[f64]| -> Result<()> {
            let (shape, found) = npz.get_shape_and_dtype(name)?;
            assert_eq!((shape.dims(), found), (dims, dtype), "{name}");
            let t = npz.get(name)?.expect(name);
            assert_eq!((t.dims(), t.dtype()), (dims, dtype), "{name}");
            assert_eq!(as_f64(&t)?, values, "{name}");
            Ok(())
        };
        for (name, dtype) in [
            ("f2", DType::F16),
            ("f4", DType::F32),
            ("f8", DType::F64),
            ("i2", DType::I16),
            ("i4", DType::I32),
            ("i8", DType::I64),
        ] {
            check(name, dtype, &[2, 3], &SIGNED)?;
            check(&format!("{name}_big"), dtype, &[2, 3], &SIGNED)?;
        }
        check("u1", DType::U8, &[2, 3], &UNSIGNED)?;
        check("u4", DType::U32, &[2, 3], &UNSIGNED)?;
        check(
            "b1",
            DType::U8,
            &[2, 3],
            &UNSIGNED.map(|x| f64::from(x > 1.)),
        )?;
        check("fortran", DType::F32, &[2, 3], &SIGNED)?;
        let count: Vec<f64> = (0..24).map(f64::from).collect();
        check("fortran_3d", DType::F32, &[2, 3, 4], &count)?;
        check("scalar", DType::I64, &[], &[-2.])?;
        check("empty", DType::F32, &[2, 0, 3], &[])?;
    }
    Ok(())
}

#[test]
fn all_versions_of_the_header() -> Result<()> {
    for version in 1..=3 {
        let t = Tensor::read_npy(file(&format!("version{version}.npy")))?;
        assert_eq!((t.dims(), t.dtype()), (&[2, 3][..], DType::F32));
        assert_eq!(as_f64(&t)?, SIGNED);
    }
    Ok(())
}

/// The bytes equal those that NumPy writes, so that its readers accept them.
#[test]
fn written_as_numpy_writes() -> Result<()> {
    let expected = std::fs::read(file("version1.npy"))?;
    let mut written = vec![];
    npy::to_writer(&Tensor::read_npy(file("version1.npy"))?, &mut written)?;
    assert_eq!(written, expected);
    Ok(())
}

const DTYPES: [DType; 8] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::F32,
    DType::F64,
];

#[test]
fn round_trips_of_all_dtypes_and_ranks() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for dtype in DTYPES {
        let mut named = vec![];
        for dims in [
            vec![],
            vec![1],
            vec![7],
            vec![0],
            vec![3, 5],
            vec![2, 0, 4],
            vec![2, 1, 3, 2],
        ] {
            let len: usize = dims.iter().product();
            let t = Tensor::arange(0f32, len as f32, &Device::Cpu)?;
            let t = t.to_dtype(dtype)?.reshape(dims)?;
            named.push((format!("rank {}, {len}", t.rank()), t));
        }
        let matrix = &named[4].1;
        let views = [
            matrix.t()?,
            matrix.narrow(1, 1, 3)?,
            matrix.narrow(0, 1, 1)?.broadcast_as((4, 5))?,
        ];
        named.extend(
            views
                .into_iter()
                .enumerate()
                .map(|(i, view)| (format!("view {i}"), view)),
        );

        let npz = dir.path().join("all.npz");
        Tensor::write_npz(&named, &npz)?;
        let read = Tensor::read_npz(&npz)?;
        assert_eq!(read.len(), named.len());
        for ((name, expected), (read_name, found)) in named.iter().zip(&read) {
            assert_eq!(name, read_name);
            let path = dir.path().join("one.npy");
            expected.write_npy(&path)?;
            for found in [found, &Tensor::read_npy(&path)?] {
                assert_eq!(found.dims(), expected.dims(), "{dtype:?} {name}");
                assert_eq!(found.dtype(), dtype);
                assert_eq!(as_f64(found)?, as_f64(expected)?, "{dtype:?} {name}");
            }
        }
        let by_name = Tensor::read_npz_by_name(&npz, &["view 0", "rank 1, 7"])?;
        assert_eq!(
            (by_name[0].dims(), by_name[1].dims()),
            (&[5, 3][..], &[7][..])
        );
    }
    Ok(())
}

#[test]
fn what_numpy_lacks_is_refused_with_advice() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("b.npy");
    let t = Tensor::ones(2, DType::BF16, &Device::Cpu)?;
    let err = t.write_npy(&path).unwrap_err().to_string();
    for part in ["b.npy", "bf16", "to_dtype"] {
        assert!(err.contains(part), "{err}");
    }
    let err = Tensor::write_npz(&[("weight", &t)], &path)
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("tensor weight") && err.contains("bf16"),
        "{err}"
    );
    let t = t.to_dtype(DType::F32)?;
    let err = Tensor::write_npz(&[("a", &t), ("a", &t)], &path)
        .unwrap_err()
        .to_string();
    assert!(err.contains("tensor a"), "{err}");
    Ok(())
}

#[test]
fn a_name_that_is_not_there() -> Result<()> {
    let npz = NpzTensors::new(file("arrays.npz"))?;
    assert!(npz.get("nothing")?.is_none());
    for err in [
        npz.get_shape_and_dtype("nothing").unwrap_err(),
        Tensor::read_npz_by_name(file("arrays.npz"), &["f4", "nothing"]).unwrap_err(),
    ] {
        let err = err.to_string();
        assert!(
            err.contains("nothing") && err.contains("arrays.npz"),
            "{err}"
        );
    }
    Ok(())
}

#[test]
fn the_same_out_of_memory_and_from_several_threads() -> Result<()> {
    let npz = NpzTensors::from_bytes(std::fs::read(file("arrays_deflated.npz"))?)?;
    std::thread::scope(|scope| {
        let read = |name| as_f64(&npz.get(name)?.expect(name));
        let readers = [
            scope.spawn(move || read("f4")),
            scope.spawn(move || read("i8_big")),
        ];
        for reader in readers {
            assert_eq!(reader.join().expect("no panic")?, SIGNED);
        }
        Ok(())
    })
}

/// Entries of other kinds are skipped; an array needs no suffix.
#[test]
fn entries_other_than_arrays() -> Result<()> {
    use std::io::Write;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("mixed.npz");
    let mut array = vec![];
    npy::to_writer(&Tensor::new(&[1f32, 2.], &Device::Cpu)?, &mut array)?;
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&path)?);
    let options = zip::write::SimpleFileOptions::default();
    let entries: [(&str, &[u8]); 4] = [
        ("readme.txt", b"no array"),
        ("empty", b""),
        ("enc/w.npy", &array),
        ("bare", &array),
    ];
    for (name, content) in entries {
        zip.start_file(name, options)?;
        zip.write_all(content)?;
    }
    zip.finish()?;
    let read = Tensor::read_npz(&path)?;
    let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["enc/w", "bare"]);
    for (name, t) in &read {
        assert_eq!(t.to_vec1::<f32>()?, [1., 2.], "{name}");
    }
    assert!(NpzTensors::new(&path)?.get("readme.txt")?.is_none());
    Ok(())
}
