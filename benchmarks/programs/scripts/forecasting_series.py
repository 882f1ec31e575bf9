"""NHiTS of PyTorch Forecasting, which Lightning trains: how series of numbers go on."""

import lightning
from pytorch_forecasting import NHiTS, TimeSeriesDataSet
from pytorch_forecasting.data.examples import generate_ar_data
from pytorch_forecasting.metrics import MAE, SMAPE

lightning.seed_everything(0)
series = generate_ar_data(seasonality=10.0, timesteps=200, n_series=60, seed=0)
train = TimeSeriesDataSet(
    series[series.time_idx < 180],
    time_idx="time_idx",
    target="value",
    group_ids=["series"],
    time_varying_unknown_reals=["value"],
    max_encoder_length=40,
    max_prediction_length=20,
)
held_out = TimeSeriesDataSet.from_dataset(train, series, min_prediction_idx=180)

model = NHiTS.from_dataset(train, learning_rate=0.003, optimizer="adam", hidden_size=32, loss=MAE())
batches = train.to_dataloader(batch_size=128)
settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=6, enable_checkpointing=False, **settings)
trainer.fit(model, batches)

loader = held_out.to_dataloader(train=False, batch_size=60)
found = model.predict(loader, return_y=True, trainer_kwargs=settings)
print(f"held-out SMAPE: {SMAPE()(found.output, found.y[0]):.4f}")
