package casefile

// Format is the value of Header.Format.
const Format = "attn-oracle-1"

// Header is the JSON line of a case file. Unknown fields are ignored.
type Header struct {
	Format   string   `json:"format"`
	Name     string   `json:"name"`
	Kind     string   `json:"kind,omitempty"`
	Source   string   `json:"source,omitempty"`
	License  string   `json:"license,omitempty"`
	Note     string   `json:"note,omitempty"`
	Features []string `json:"features,omitempty"`

	// ToleranceAbs, if positive, is the absolute error that is accepted in place
	// of the magnitude rule.
	ToleranceAbs float64 `json:"tolerance_abs,omitempty"`

	Attrs  Attrs   `json:"attrs"`
	Checks Checks  `json:"checks"`
	Arrays []Entry `json:"arrays"`
}

// Attrs is the attention problem without its arrays.
type Attrs struct {
	Hq             int     `json:"hq"`
	Hkv            int     `json:"hkv"`
	Dk             int     `json:"dk"`
	Dv             int     `json:"dv"`
	Scale          float64 `json:"scale"`
	ScaleIsDefault bool    `json:"scale_is_default"`
	Softcap        float64 `json:"softcap"` // 0 is off
	DropoutP       float64 `json:"dropout_p"`
	DropoutSeed    *string `json:"dropout_seed"` // decimal; nil: the keep array is arbitrary
	Seqs           []Seq   `json:"seqs"`
	CuQ            []int   `json:"cu_q"`
	CuKV           []int   `json:"cu_kv"`
	BiasHeads      int     `json:"bias_heads"` // 0 none, 1 shared by all heads, or Hq
	MaskHeads      int     `json:"mask_heads"` // likewise
}

// Seq is one sequence: query i is at position p = i + Offset, and sees the keys
// j with p-Left ≤ j ≤ p+Right, where a negative side is unbounded, and j ≤ p if
// Causal.
type Seq struct {
	Q      int  `json:"q"`  // query rows
	KV     int  `json:"kv"` // keys
	Causal bool `json:"causal"`
	Offset int  `json:"offset"`
	Left   int  `json:"left"`
	Right  int  `json:"right"`
}

// Checks is what is known about the precision of the expected values.
type Checks struct {
	// F32NaiveErrUnits is, for each output, the error of a plain float32
	// attention in units of 2^-24 · magnitude.
	F32NaiveErrUnits map[string]float64 `json:"f32_naive_err_units,omitempty"`
}

// Entry is where one array lies in the file.
type Entry struct {
	Name   string `json:"name"`
	Role   Role   `json:"role"`
	DType  DType  `json:"dtype"`
	Shape  []int  `json:"shape"`
	Offset int64  `json:"offset"` // bytes from the end of the header line
	NBytes int64  `json:"nbytes"`
}

// Role says what an array is for.
type Role string

// The roles. A magnitude has the name and shape of the output that it belongs
// to: the same sums, over absolute values.
const (
	Input     Role = "input"
	Output    Role = "output"
	Magnitude Role = "magnitude"
)

// DType is the type of an array's elements in the file.
type DType string

// The element types. Bool is one byte, 0 or 1.
const (
	F64  DType = "f64"
	F32  DType = "f32"
	F16  DType = "f16"
	I64  DType = "i64"
	I32  DType = "i32"
	U8   DType = "u8"
	Bool DType = "bool"
)

// Size returns the bytes of one element, or 0 if t is not a known type.
func (t DType) Size() int {
	switch t {
	case F64, I64:
		return 8
	case F32, I32:
		return 4
	case F16:
		return 2
	case U8, Bool:
		return 1
	}
	return 0
}
