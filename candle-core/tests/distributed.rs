//! Groups of ranks: results and failures. Each test runs on threads, and on the TCP transport between processes.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use candle_core::distributed::{Communicator, LocalGroup, ProcessGroup};
use candle_core::{bail, DType, Device, Result, Tensor, Var};

const CPU: &Device = &Device::Cpu;

/// Timeout of calls that should succeed: long for a slow machine, short for a failing test.
const PATIENCE: Duration = Duration::from_secs(20);

type Rank = Box<dyn Communicator>;

/// Returns an address without a listener.
pub(crate) fn address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Runs `rank` on each rank of a group over both transports, and returns the results in rank order. A panic counts as an error.
fn on_groups<T: Send>(
    world: usize,
    timeout: Duration,
    rank: impl Fn(Rank) -> Result<T> + Sync,
) -> [Vec<std::result::Result<T, String>>; 2] {
    let local = LocalGroup::ranks_with_timeout(world, timeout).unwrap();
    let local: Vec<_> = local
        .into_iter()
        .map(Some)
        .map(std::sync::Mutex::new)
        .collect();
    let local =
        |i: usize| -> Result<Rank> { Ok(Box::new(local[i].lock().unwrap().take().unwrap())) };
    let address = address();
    let connect = |i: usize| -> Result<Rank> {
        let group = ProcessGroup::connect_with_timeout(&address, i, world, timeout)?;
        Ok(Box::new(group))
    };
    [
        in_threads(world, &|i| local(i).and_then(&rank)),
        in_threads(world, &|i| connect(i).and_then(&rank)),
    ]
}

fn in_threads<T: Send>(
    world: usize,
    rank: &(dyn Fn(usize) -> Result<T> + Sync),
) -> Vec<std::result::Result<T, String>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world).map(|i| scope.spawn(move || rank(i))).collect();
        let threads = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result.map_err(|err| err.to_string()),
            Err(_) => Err("panic".to_string()),
        });
        threads.collect()
    })
}

/// Like [`on_groups`], for ranks that must not fail.
fn all<T: Send>(world: usize, rank: impl Fn(Rank) -> Result<T> + Sync) -> [Vec<T>; 2] {
    on_groups(world, PATIENCE, rank)
        .map(|group| group.into_iter().map(std::result::Result::unwrap).collect())
}

const NUMBERS: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

#[test]
fn sums_of_all_dtypes() {
    for dtype in NUMBERS {
        for world in [1, 2, 3] {
            // A view, not contiguous, of shape (3, 2).
            let sums = all(world, |group| {
                let mine = Tensor::arange(0u32, 6, CPU)?.reshape((2, 3))?.t()?;
                let mine = (mine + group.rank() as f64)?
                    .to_dtype(dtype)?
                    .t()?
                    .contiguous()?;
                let sum = group.all_reduce(&mine.t()?)?;
                assert_eq!((sum.dtype(), sum.is_contiguous()), (dtype, true));
                sum.to_dtype(DType::F64)?.to_vec2::<f64>()
            });
            let ranks: usize = (0..world).sum();
            let value = |i: usize| (world * i + ranks) as f64;
            let expected = [0, 1, 2].map(|i| vec![value(i), value(i + 3)]);
            for sums in sums.into_iter().flatten() {
                assert_eq!(sums, expected, "{dtype:?}, {world} ranks");
            }
        }
    }
}

/// A sum rounded after each term would lose all small terms.
#[test]
fn half_floats_are_rounded_once() {
    let sums = all(5, |group| {
        let mine = if group.rank() == 0 { 2048f32 } else { 0.5 };
        let sum = group.all_reduce(&Tensor::new(mine, CPU)?.to_dtype(DType::F16)?)?;
        sum.to_dtype(DType::F32)?.to_vec0::<f32>()
    });
    assert_eq!(sums.concat(), [2050.; 10]);
}

#[test]
fn integers_wrap() {
    let sums = all(2, |group| {
        group
            .all_reduce(&Tensor::new(&[200u8, 255], CPU)?)?
            .to_vec1::<u8>()
    });
    assert_eq!(sums.concat(), vec![vec![144, 254]; 4]);
}

#[test]
fn gathered_in_the_order_of_ranks() {
    let gathered = all(3, |group| {
        let first = 10 * group.rank() as u32;
        let mine = Tensor::arange(first, first + 2, CPU)?.reshape((1, 2))?;
        let rows = group.all_gather(&mine, 0)?.to_vec2::<u32>()?;
        let columns = group.all_gather(&mine, 1)?.to_vec2::<u32>()?;
        let none = group.all_gather(&Tensor::zeros((0, 4), DType::F32, CPU)?, 1)?;
        assert_eq!(none.dims(), [0, 12]);
        Ok((rows, columns))
    });
    for (rows, columns) in gathered.concat() {
        assert_eq!(rows, [[0, 1], [10, 11], [20, 21]]);
        assert_eq!(columns, [[0, 1, 10, 11, 20, 21]]);
    }
}

#[test]
fn broadcast_from_each_rank() {
    let got = all(3, |group| {
        let mine = Tensor::new(&[group.rank() as i64, -1], CPU)?;
        let from = |root| group.broadcast(&mine, root)?.to_vec1::<i64>();
        Ok([from(0)?, from(1)?, from(2)?])
    });
    for got in got.concat() {
        assert_eq!(got, [[0, -1], [1, -1], [2, -1]]);
    }
}

/// A rank's changes to its tensors after a call are invisible to a rank that reads late.
#[test]
fn ranks_do_not_share_memory() {
    let sums = all(2, |group| {
        for round in 0..200 {
            let mine = Tensor::full(1f32, 64, CPU)?;
            let got = group.broadcast(&mine, round % 2)?;
            mine.slice_set(&Tensor::full(7f32, 64, CPU)?, 0, 0)?;
            let sum = got.sum_all()?.to_vec0::<f32>()?;
            got.slice_set(&Tensor::full(9f32, 64, CPU)?, 0, 0)?;
            if sum != 64. {
                bail!("round {round}: {sum}")
            }
        }
        Ok(())
    });
    assert_eq!(sums.concat().len(), 4);
}

/// Runs a group in which one rank fails, and checks that the other ranks report the failure promptly, in this call and all later ones.
#[track_caller]
fn ends(world: usize, wrong: usize, told: &[&str], rank: impl Fn(&Rank) -> Result<()> + Sync) {
    let start = Instant::now();
    let groups = on_groups(world, PATIENCE, |group| {
        group.all_reduce(&Tensor::ones(3, DType::F32, CPU)?)?;
        if group.rank() == wrong {
            rank(&group)?;
            return Ok(());
        }
        let first = group.all_reduce(&Tensor::ones(3, DType::F32, CPU)?);
        let second = group.broadcast(&Tensor::ones(3, DType::F32, CPU)?, 0);
        assert!(second.is_err(), "the group goes on");
        first.map(drop)
    });
    for (group, name) in groups.iter().zip(["threads", "processes"]) {
        for (rank, result) in group.iter().enumerate().filter(|(rank, _)| *rank != wrong) {
            let err = result.as_ref().expect_err(name);
            for text in told {
                assert!(err.contains(text), "{name}, rank {rank}: {err}");
            }
        }
    }
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_leaves_ends_the_group() {
    for wrong in [0, 1, 2] {
        ends(3, wrong, &[&format!("rank {wrong}")], |_| Ok(()));
        ends(3, wrong, &[&format!("rank {wrong}")], |_| {
            bail!("out of memory")
        });
    }
}

#[test]
fn a_rank_that_panics_ends_the_group() {
    ends(2, 1, &["rank 1", "panicked"], |_| panic!("on purpose"));
    ends(2, 0, &["rank 0", "panicked"], |_| panic!("on purpose"));
}

#[test]
fn a_rank_that_aborts_ends_the_group() {
    ends(3, 1, &["rank 1", "out of memory on gpu 1"], |group| {
        group.abort("out of memory on gpu 1");
        Ok(())
    });
}

#[test]
fn other_calls_end_the_group() {
    let ones = |shape: usize, dtype| Tensor::ones(shape, dtype, CPU);
    ends(2, 1, &["ranks disagree", "rank 1", "[4] F32"], |group| {
        assert!(group.all_reduce(&ones(4, DType::F32)?).is_err());
        Ok(())
    });
    ends(2, 1, &["ranks disagree", "[3] F64"], |group| {
        assert!(group.all_reduce(&ones(3, DType::F64)?).is_err());
        Ok(())
    });
    ends(
        3,
        2,
        &["ranks disagree", "all_gather along dimension 0"],
        |group| {
            assert!(group.all_gather(&ones(3, DType::F32)?, 0).is_err());
            Ok(())
        },
    );
}

#[test]
fn calls_that_make_no_sense() {
    let errors = on_groups(2, PATIENCE, |group| match group.rank() {
        0 => group.all_gather(&Tensor::ones(3, DType::F32, CPU)?, 1),
        _ => group.all_reduce(&Tensor::ones(3, DType::F32, CPU)?),
    });
    for group in errors {
        let [own, other] = <[_; 2]>::try_from(group)
            .unwrap()
            .map(std::result::Result::unwrap_err);
        assert!(
            own.contains("dimension 1 of a tensor of shape [3]"),
            "{own}"
        );
        assert!(other.contains("rank 0"), "{other}");
    }
    let alone = LocalGroup::ranks(1).unwrap().remove(0);
    let var = Var::new(&[1f32], CPU).unwrap();
    let err = alone.all_reduce(var.as_tensor()).unwrap_err().to_string();
    assert!(err.contains("autograd"), "{err}");
    let ones = Tensor::ones(3, DType::F32, CPU).unwrap();
    let err = alone.broadcast(&ones, 1).unwrap_err().to_string();
    assert!(err.contains("rank 1"), "{err}");
    assert!(LocalGroup::ranks(0).is_err());
    let err = ProcessGroup::connect(&address(), 2, 2)
        .unwrap_err()
        .to_string();
    assert!(err.contains("rank 2 of 2"), "{err}");
}

#[test]
fn a_rank_that_never_comes_is_a_timeout() {
    let timeout = Duration::from_millis(300);
    let groups = on_groups(3, timeout, |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return Ok(());
        }
        group
            .all_reduce(&Tensor::ones(3, DType::F32, CPU)?)
            .map(drop)
    });
    for group in groups {
        let err = group[0].as_ref().unwrap_err();
        assert!(err.contains('1') && err.contains("300ms"), "{err}");
        assert!(group[2].is_err());
    }
    let err = ProcessGroup::connect_with_timeout(&address(), 0, 3, timeout).unwrap_err();
    assert!(err.to_string().contains("[1, 2] did not connect"), "{err}");
    let err = ProcessGroup::connect_with_timeout(&address(), 1, 3, timeout).unwrap_err();
    assert!(err.to_string().contains("rank 0 was not reached"), "{err}");
}

/// Ranks start in any order, and a connection that is not from a rank has no effect.
#[test]
fn processes_that_do_not_start_together() {
    let address = address();
    let sums = in_threads(3, &|rank| {
        std::thread::sleep(Duration::from_millis(60 * (2 - rank as u64)));
        if rank == 1 {
            let stray = loop {
                match std::net::TcpStream::connect(&address) {
                    Ok(stray) => break stray,
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            std::io::Write::write_all(&mut &stray, b"GET / HTTP/1.1\r\n\r\n")?;
        }
        let group = ProcessGroup::connect_with_timeout(&address, rank, 3, PATIENCE)?;
        group
            .all_reduce(&Tensor::new(rank as u32, CPU)?)?
            .to_vec0::<u32>()
    });
    assert_eq!(sums, [Ok(3), Ok(3), Ok(3)]);
    let errors = in_threads(2, &|rank| {
        let group = ProcessGroup::connect_with_timeout(&address, rank, 2 + rank, PATIENCE);
        group.map(drop)
    });
    let err = errors[0].as_ref().unwrap_err();
    assert!(err.contains("rank 1 expects a group of 3 ranks"), "{err}");
    assert!(errors[1].is_err());
}
