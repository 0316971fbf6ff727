// The element of dst in which a product's column `col`, counted from the first one, has its `row`. Columns past a row of dst are those of
// the next matrix.
fn dst_place(part: u32, row: u32, col: u32) -> u32 {
  let at = p.dst_first + col;
  if (at < p.dst_row) {
    return (part * p.m + row) * p.dst_row + at;
  }
  return ((part + at / p.dst_row) * p.m + row) * p.dst_row + at % p.dst_row;
}
