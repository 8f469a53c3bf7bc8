package main

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// plotCurve draws the loss over the steps, beside the entropy of single bytes.
func plotCurve(path string, curve []point, entropy float64) error {
	p := plot.New()
	p.Title.Text = "A byte-level language model of Go"
	p.X.Label.Text, p.Y.Label.Text = "step", "loss, nats a byte"
	var loss, unigram plotter.XYs
	for _, c := range curve {
		loss = append(loss, plotter.XY{X: float64(c.Step), Y: c.Loss})
		unigram = append(unigram, plotter.XY{X: float64(c.Step), Y: entropy})
	}
	if err := plotutil.AddLines(p, "training loss", loss, "unigram entropy", unigram); err != nil {
		return err
	}
	p.Y.Min = 0
	p.Legend.Top = true
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}
