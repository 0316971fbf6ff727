// Indexes as data: `ids`, and p.size, the size of the dimension that they index.

// The value for skipped and invalid indexes.
const NOTHING = 0xffffffffu;

// The index at `at` of `ids`, or NOTHING for one that is skipped, or is out of range and reported.
fn id_at(at: u32) -> u32 {
  let id = ids_at(at);
  if (skipped(id)) {
    return NOTHING;
  }
  let low = low_word(id);
  if (!fits(id) || low >= p.size) {
    // The first report is kept. The op's number makes it valid, so it is written last.
    if (atomicLoad(&status[0]) == 0u) {
      atomicStore(&status[1], low);
      atomicStore(&status[2], p.size);
      atomicStore(&status[0], p.op);
    }
    return NOTHING;
  }
  return low;
}
