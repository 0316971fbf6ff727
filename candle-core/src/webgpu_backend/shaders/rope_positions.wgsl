// Each sequence of a batch continues at an index in the cache that only the device knows. An index that is too large is reported.

fn position_of(batch: u32) -> u32 {
  let position = positions_at(p.positions_offset + batch * p.positions_step);
  // The first report is kept. The op's number makes it valid, so it is written last.
  if (position > p.capacity - p.seq && atomicLoad(&status[0]) == 0u) {
    atomicStore(&status[1], position);
    atomicStore(&status[2], p.capacity - p.seq + 1u);
    atomicStore(&status[0], p.op);
  }
  return position;
}
